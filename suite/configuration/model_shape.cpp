#include "suite/configuration/model_shape.h"

#include <fmt/format.h>

#include <algorithm>

#include "machine/base/names.h"
#include "suite/trainer/trainer.h"

namespace suite::configuration {
namespace {

struct NamedShape {
  std::string name;
  Model model;
};

const std::vector<NamedShape>& shapes() {
  static const std::vector<NamedShape> table = [] {
    std::vector<NamedShape> all;
    for (const std::string& name : suite::model_names()) {
      const layers::GptConfig gpt = suite::named_model(name);
      all.push_back(
          {name,
           {.num_layers = gpt.layers,
            .hidden_size = gpt.hidden,
            .num_attention_heads = gpt.heads,
            .num_query_groups = gpt.query_groups() == gpt.heads ? 0 : gpt.query_groups(),
            .ffn_hidden_size = gpt.ffn_hidden_size,
            .vocabulary_size = gpt.vocabulary,
            .seq_length = gpt.sequence,
            .swiglu = gpt.swiglu,
            .disable_bias_linear = gpt.disable_bias_linear,
            .untie_embeddings_and_output_weights = gpt.untie_embeddings_and_output_weights,
            .normalization = std::string(layers::name(gpt.normalization)),
            .position_embedding_type = std::string(layers::name(gpt.position_embedding_type))}});
    }
    all.push_back({"gpt3_175b",
                   {.num_layers = 96,
                    .hidden_size = 12288,
                    .num_attention_heads = 96,
                    .vocabulary_size = 50257,
                    .seq_length = 2048}});
    return all;
  }();
  return table;
}

struct Counts {
  double cut, whole;  // over tp; on every rank
};

double norm(const Model& model) {
  return static_cast<double>(model.hidden_size) * (model.normalization == "RMSNorm" ? 1 : 2);
}

Counts layer(const Model& model) {
  const auto h = static_cast<double>(model.hidden_size), f = static_cast<double>(ffn_width(model));
  const auto a = static_cast<double>(model.num_attention_heads);
  const double g = model.num_query_groups > 0 ? static_cast<double>(model.num_query_groups) : a;
  const double qkv = h + 2 * h * g / a, up = (model.swiglu ? 2 : 1) * f;
  Counts counts{h * qkv + h * h + h * up + f * h, 2 * norm(model)};
  if (!model.disable_bias_linear) {
    counts.cut += qkv + up;
    counts.whole += 2 * h;
  }
  return counts;
}

double positions(const Model& model) {
  if (model.position_embedding_type != "learned_absolute") return 0;
  const std::int64_t rows =
      model.max_position_embeddings > 0 ? model.max_position_embeddings : model.seq_length;
  return static_cast<double>(rows) * static_cast<double>(model.hidden_size);
}

}  // namespace

const std::vector<std::string>& shape_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const NamedShape& shape : shapes()) all.push_back(shape.name);
    return all;
  }();
  return names;
}

Model named_shape(const std::string& name) {
  const auto found = std::ranges::find(shapes(), name, &NamedShape::name);
  if (found != shapes().end()) return found->model;
  throw harness::UsageError(machine::unknown("model", name, shape_names()));
}

bool has_shape(const Model& model) {
  return model.num_layers > 0 && model.hidden_size > 0 && model.num_attention_heads > 0 &&
         model.seq_length > 0;
}

void check_shape(const Model& model) {
  const auto divides = [](std::string_view what, std::int64_t number, std::string_view of,
                          std::int64_t whole) {
    if (number > 0 && whole % number != 0)
      throw harness::UsageError(
          fmt::format("{} {} does not divide {} {}", what, number, of, whole));
  };
  divides("--num-attention-heads", model.num_attention_heads, "--hidden-size", model.hidden_size);
  divides("--num-query-groups", model.num_query_groups, "--num-attention-heads",
          model.num_attention_heads);
}

std::int64_t ffn_width(const Model& model) {
  if (model.ffn_hidden_size > 0) return model.ffn_hidden_size;
  const std::int64_t width = 4 * model.hidden_size;
  return model.swiglu ? width * 2 / 3 / 64 * 64 : width;
}

std::int64_t padded_vocabulary(const Model& model, std::int64_t tp) {
  const std::int64_t unit = model.make_vocab_size_divisible_by * tp;
  return (model.vocabulary_size + unit - 1) / unit * unit;
}

double parameters_of(const Model& model) {
  if (!has_shape(model)) return static_cast<double>(model.parameters);
  const Counts each = layer(model);
  const double table = static_cast<double>(model.vocabulary_size) *
                       static_cast<double>(model.hidden_size) *
                       (model.untie_embeddings_and_output_weights ? 2 : 1);
  return static_cast<double>(model.num_layers) * (each.cut + each.whole) + table +
         positions(model) + norm(model);
}

double parameters_of_rank(const Model& model, const Degrees& degrees) {
  const auto tp = static_cast<double>(degrees.tensor), pp = static_cast<double>(degrees.pipeline);
  if (!has_shape(model)) return static_cast<double>(model.parameters) / tp / pp;
  const Counts each = layer(model);
  const double layers = static_cast<double>(model.num_layers) / pp * (each.cut / tp + each.whole);
  const double table = static_cast<double>(padded_vocabulary(model, degrees.tensor)) *
                       static_cast<double>(model.hidden_size) / tp;
  const double first = table + positions(model), last = table + norm(model);
  if (degrees.pipeline > 1) return layers + std::max(first, last);
  return layers + first + norm(model) + (model.untie_embeddings_and_output_weights ? table : 0);
}

double largest_part(const Model& model) {
  const auto h = static_cast<double>(model.hidden_size), f = static_cast<double>(ffn_width(model));
  const double up = (model.swiglu ? 2 : 1) * f, bias = model.disable_bias_linear ? 0 : 1;
  const Model& m = model;
  const double groups = static_cast<double>(m.num_query_groups > 0
                                                ? m.num_query_groups
                                                : std::max<std::int64_t>(m.num_attention_heads, 1));
  const double qkv =
      h + 2 * h * groups / static_cast<double>(std::max<std::int64_t>(m.num_attention_heads, 1));
  return std::max({static_cast<double>(model.vocabulary_size) * h, up * (h + bias),
                   qkv * (h + bias), f * h + bias * h});
}

}  // namespace suite::configuration

#include "suite/trainer/model_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string_view>
#include <unordered_map>

#include "suite/trainer/model_chunks.h"

namespace suite {

namespace {

using collectives::Parameter, collectives::Role, collectives::Spread;
using Cut = zero::MatrixRow::Cut;

bool is_matrix(const Parameter& parameter, bool all) {
  const std::string_view name = parameter.name;
  return (parameter.role == Role::weight || parameter.role == Role::residual) &&
         parameter.global_shape.rank() == 2 &&
         (all || (!name.starts_with("embedding.") && name != "head.output.weight"));
}

// Returns whether the parameter is two matrices of `hidden` columns, each a row of its shape.
bool is_stacked(const Parameter& parameter, const TrainingConfig::Model& model) {
  const std::string_view name = parameter.name;
  return (model.swiglu && name.ends_with(".fc1.weight")) || name.ends_with(".cross.kv.weight");
}

}  // namespace

ModelParts model_parts(ModelChunks& model) {
  std::unordered_map<const collectives::Parameter*, int> row_of;
  for (const collectives::Parameter* parameter : model.parameters())
    row_of.emplace(parameter, static_cast<int>(row_of.size()));
  ModelParts parts;
  const auto add = [&](layers::ModelStage& chunk) {
    ModelParts::Chunk place{.begin = parts.rows.size(),
                            .has_embedding = chunk.stage().first(),
                            .has_head = chunk.stage().last()};
    for (const layers::Parameters& part : chunk.parts()) {
      std::vector<int>& rows = parts.rows.emplace_back();
      for (const collectives::Parameter* parameter : part) rows.push_back(row_of.at(parameter));
    }
    place.end = parts.rows.size();
    return place;
  };
  parts.chunks.resize(static_cast<std::size_t>(model.size()));
  for (const int chunk : model.in_order())
    parts.chunks[static_cast<std::size_t>(chunk)] = add(model[chunk]);
  return parts;
}

std::vector<std::string> frozen_parameters(const TrainingConfig& config,
                                           const layers::Parameters& parameters) {
  std::vector<std::string> names;
  for (const collectives::Parameter* parameter : parameters) names.push_back(parameter->name);
  const std::vector<std::string> frozen = config.frozen_names(names);
  const auto is_frozen = [&](const std::string& name) {
    return std::ranges::find(frozen, name) != frozen.end();
  };
  constexpr std::string_view gain = ".gain";
  for (const std::string& name : names) {
    if (!name.ends_with(gain)) continue;
    const std::string bias = name.substr(0, name.size() - gain.size()) + ".bias";
    if (std::ranges::find(names, bias) != names.end() && is_frozen(name) != is_frozen(bias))
      throw std::invalid_argument(fmt::format(
          "freeze is {}; expected the gain and the bias of a norm together (it selects one of {} "
          "and {})",
          config.frozen, name, bias));
  }
  return frozen;
}

bool micro_batch_is_pass(const TrainingConfig& config) {
  const pipeline::Schedule& schedule = pipeline::find_schedule(config.pipeline.schedule);
  const pipeline::Size size = pipeline_size(config);
  return size.stages == 1 && size.chunks == 1 && schedule.whole() && schedule.peak(0, size) <= 1;
}

int pass_number(const pipeline::Action& action) {
  constexpr int kinds = 4;
  return action.chunk * kinds + static_cast<int>(action.kind);
}

zero::LayoutOptions layout_options(const TrainingConfig& config, const ModelParts& parts) {
  zero::LayoutOptions options{.reduce_bucket_size = config.zero.reduce_bucket_size};
  if (config.optimizer.is_8bit()) options.alignment = machine::moment_block;
  if (config.zero.stage < 2) return options;
  // Stage 2 shards no values, so small parameters stay with their part.
  options.persistence_threshold =
      config.zero.stage == 3 ? config.zero.param_persistence_threshold : 0;
  options.model_persistence_threshold = config.zero.model_persistence_threshold;
  int rows = 0;
  for (const std::vector<int>& part : parts.rows)
    for (const int row : part) rows = std::max(rows, row + 1);
  options.parts.resize(static_cast<std::size_t>(rows));
  options.chunks.resize(static_cast<std::size_t>(rows));
  for (std::size_t part = parts.rows.size(); part-- > 0;)  // a shared row belongs to its first user
    for (const int row : parts.rows[part]) {
      const auto has = [&](const ModelParts::Chunk& chunk) {
        return chunk.begin <= part && part < chunk.end;
      };
      const auto chunk = std::ranges::find_if(parts.chunks, has) - parts.chunks.begin();
      options.parts[static_cast<std::size_t>(row)] = static_cast<int>(part);
      options.chunks[static_cast<std::size_t>(row)] = static_cast<int>(chunk);
    }
  return options;
}

namespace {

using Rows = std::vector<std::vector<int>>;

Rows forward_uses(const ModelParts& parts, const ModelParts::Chunk& chunk) {
  return {parts.rows.begin() + static_cast<std::ptrdiff_t>(chunk.begin),
          parts.rows.begin() + static_cast<std::ptrdiff_t>(chunk.end)};
}

// The embedding is not here, because its backward reads no values.
Rows backward_uses(const TrainingConfig& config, const ModelParts& parts,
                   const ModelParts::Chunk& chunk) {
  const Rows rows = forward_uses(parts, chunk);
  const auto blocks = rows.begin() + (chunk.has_embedding ? 1 : 0);
  const std::size_t count = rows.size() - (chunk.has_embedding ? 1 : 0) - (chunk.has_head ? 1 : 0);
  Rows uses;
  if (chunk.has_head) uses.push_back(rows.back());
  const auto groups = layers::layer_groups(config.activations, count);
  for (auto group = groups.rbegin(); group != groups.rend(); ++group) {
    const auto begin = blocks + static_cast<std::ptrdiff_t>(group->begin),
               end = blocks + static_cast<std::ptrdiff_t>(group->end);
    if (group->recomputed) uses.insert(uses.end(), begin, end);
    uses.insert(uses.end(), std::make_reverse_iterator(end), std::make_reverse_iterator(begin));
  }
  return uses;
}

// Adds the gradients of a chunk's backward.
void add_gradients(zero::Usage& usage, const ModelParts& parts, const ModelParts::Chunk& chunk) {
  Rows rows = forward_uses(parts, chunk);
  std::ranges::reverse(rows);
  usage.begun = usage.ready = rows;
  if (!chunk.has_head) return;
  // A table that the embedding shares is not ready after the head: the embedding still adds to it.
  for (const ModelParts::Chunk& other : parts.chunks) {
    if (!other.has_embedding) continue;
    const std::vector<int>& embedding = parts.rows[other.begin];
    std::erase_if(usage.ready.front(), [&](int row) {
      return std::find(embedding.begin(), embedding.end(), row) != embedding.end();
    });
  }
}

}  // namespace

zero::Passes model_passes(const TrainingConfig& config, const ModelParts& parts,
                          const std::vector<pipeline::Action>& actions) {
  using pipeline::Kind;
  if (config.zero.stage < 2) return {};
  if (micro_batch_is_pass(config)) {
    const ModelParts::Chunk& chunk = parts.chunks.front();
    zero::Usage usage{.micro_batches = config.micro_batches(), .uses = forward_uses(parts, chunk)};
    const Rows backward = backward_uses(config, parts, chunk);
    usage.uses.insert(usage.uses.end(), backward.begin(), backward.end());
    add_gradients(usage, parts, chunk);
    return usage;
  }
  zero::Passes passes;
  passes.kinds.clear();
  passes.order.clear();
  std::map<int, std::size_t> known;
  for (const pipeline::Action& action : actions) {
    const auto [kind, fresh] = known.try_emplace(pass_number(action), passes.kinds.size());
    passes.order.push_back(kind->second);
    if (!fresh) {
      ++passes.kinds[kind->second].micro_batches;
      continue;
    }
    const ModelParts::Chunk& chunk = parts.chunks[static_cast<std::size_t>(action.chunk)];
    zero::Usage& usage = passes.kinds.emplace_back();
    usage.gradients.emplace();
    usage.backward = action.kind != Kind::forward;
    if (action.kind == Kind::forward) usage.uses = forward_uses(parts, chunk);
    if (action.kind == Kind::backward || action.kind == Kind::backward_input)
      usage.uses = backward_uses(config, parts, chunk);
    if (action.kind == Kind::backward || action.kind == Kind::backward_weights) {
      add_gradients(usage, parts, chunk);
      for (const std::vector<int>& part : usage.begun)
        usage.gradients->insert(usage.gradients->end(), part.begin(), part.end());
    }
  }
  return passes;
}

void name_matrices(zero::GradientPlan& plan, const layers::Parameters& parameters,
                   const TrainingConfig& config) {
  if (config.optimizer.is_8bit()) {
    for (zero::GradientRow& row : plan.rows)
      if (row.elements >= config.optimizer.min_8bit_size) row.matrix.columns = row.elements;
    return;
  }
  const bool all = config.optimizer.type == "adafactor";
  if (!all && config.optimizer.type != "muon") return;
  const TrainingConfig::Model& model = config.model;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& parameter = *parameters[i];
    if (!is_matrix(parameter, all)) continue;
    zero::MatrixRow& matrix = plan.rows[i].matrix;
    const bool stacked = is_stacked(parameter, model),
               cut = parameter.placement.tp == Spread::sharded &&
                     parameter.placement.parts(plan.tp) == plan.tp;
    const bool columns = cut && !stacked && parameter.placement.dim == 1;
    matrix.cut = columns ? Cut::columns : cut ? Cut::rows : Cut::nothing;
    matrix.columns = stacked ? model.hidden : parameter.global_shape[1] / (columns ? plan.tp : 1);
    if (!all && config.optimizer.muon.split_qkv &&
        parameter.name.ends_with(".attention.qkv.weight")) {
      const std::int64_t head = model.hidden / model.heads;
      matrix.parts = {model.heads / model.query_groups() * head, head, head};
    }
  }
}

}  // namespace suite

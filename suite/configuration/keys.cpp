#include "suite/configuration/keys.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "machine/base/names.h"

namespace suite::configuration {
namespace {

const std::vector<Key>& table() {
  static const std::vector<Key> all = [] {
    std::vector<Key> rows;
    for (const auto& part :
         {model_keys(), step_keys(), zero_keys(), refused_keys(), ignored_keys()})
      rows.insert(rows.end(), part.begin(), part.end());
    return rows;
  }();
  return all;
}

const std::vector<Word>& word_table() {
  static const std::vector<Word> all{
      {"fp16.enabled", "dtype", {{"true", "half"}}},
      {"bf16.enabled", "dtype", {{"true", "bfloat16"}}},
      {"bfloat16", "bf16", {}, true},
      {"zero_optimization.cpu_offload",
       "zero_optimization.offload_optimizer.device",
       {{"true", "cpu"}, {"false", "none"}},
       true},
      {"zero_optimization.cpu_offload_param",
       "zero_optimization.offload_param.device",
       {{"true", "cpu"}, {"false", "none"}},
       true},
      {"zero_optimization.cpu_offload_params",
       "zero_optimization.offload_param.device",
       {{"true", "cpu"}, {"false", "none"}},
       true},
      {"zero_optimization.cpu_offload_use_pin_memory",
       "zero_optimization.offload_optimizer.pin_memory",
       {},
       true},
      {"zero_optimization.stage3_gather_fp16_weights_on_model_save",
       "zero_optimization.stage3_gather_16bit_weights_on_model_save",
       {},
       true},
      {"aio.thread_count", "aio.intra_op_parallelism", {}, true},
      {"seq_parallel_comm_data_type", "seq_parallel_communication_data_type", {}, true},
      {"tensor_parallel.tp_size", "tensor_parallel.autotp_size"},
      {"tensor_parallel.tp.tp_size", "tensor_parallel.autotp_size"},
      {"--tp", "--tensor-model-parallel-size"},
      {"--pp", "--pipeline-model-parallel-size"},
      {"--cp", "--context-parallel-size"},
      {"--fp16", "dtype", {{"true", "half"}}},
      {"--bf16", "dtype", {{"true", "bfloat16"}}},
      {"--layernorm-epsilon", "--norm-epsilon"},
      {"--num-key-value-heads", "--num-query-groups"},
      {"--use-rotary-position-embeddings", "--position-embedding-type", {{"true", "rope"}}},
      {"--accumulate-allreduce-grads-in-fp32", "data_types.grad_accum_dtype", {{"true", "fp32"}}},
      {"--overlap-param-gather", "--overlap-grad-reduce"},
      {"--optimizer-cpu-offload", "offload_optimizer", {{"true", "cpu"}}},
      {"--use-distributed-optimizer", "--zero-stage", {{"true", "1"}}},
      {"--data-parallel-sharding-strategy",
       "--zero-stage",
       {{"no_shard", "0"}, {"optim", "1"}, {"optim_grads", "2"}, {"optim_grads_params", "3"}}},
      {"--recompute-activations", "--recompute-granularity", {{"true", "selective"}}},
      {"--checkpoint-activations", "--recompute-granularity", {{"true", "full"}}, true},
      {"--checkpoint-num-layers", "--recompute-num-layers", {}, true},
      {"--checkpoint-in-cpu", "cpu-checkpointing"},
      {"--partition-activations", "--distribute-saved-activations"},
      {"--use-flash-attn-v2", "--use-flash-attn"},
  };
  return all;
}

std::string_view last_name(std::string_view path) { return path.substr(path.rfind('.') + 1); }
std::string_view section_of(std::string_view path) {
  const std::size_t dot = path.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : path.substr(0, dot);
}
bool lies_in(std::string_view path, std::string_view section) {
  return path.size() > section.size() && path.starts_with(section) && path[section.size()] == '.';
}

}  // namespace

std::string_view name(Effect effect) {
  constexpr std::string_view names[] = {"honoured", "planned", "refused", "ignored"};
  return names[static_cast<std::size_t>(effect)];
}

Key row(std::string_view megatron, std::string_view deepspeed, FieldOf field, Limits limits,
        const Needs* needs) {
  return {.megatron = megatron,
          .deepspeed = deepspeed,
          .field = field,
          .limits = std::move(limits),
          .needs = needs};
}

bool Key::takes(const Value& value) const {
  if (inert == "*" || std::holds_alternative<std::monostate>(value)) return true;
  for (std::size_t begin = 0; begin <= inert.size() && !inert.empty();) {
    const std::size_t end = std::min(inert.find('|', begin), inert.size());
    const std::string one(inert.substr(begin, end - begin));
    const bool same = std::visit(
        [&](const auto& said) {
          using T = std::decay_t<decltype(said)>;
          if constexpr (std::is_same_v<T, bool>)
            return value_of(Kind::truth, one) == Value(said);
          else if constexpr (std::is_same_v<T, double>)
            return value_of(Kind::number, one) == Value(said);
          else if constexpr (std::is_same_v<T, std::string>)
            return said == one;
          else
            return false;
        },
        value);
    if (same) return true;
    begin = end + 1;
  }
  return false;
}

std::span<const Key> keys() { return table(); }
std::span<const Word> words() { return word_table(); }

const Key* find_key(std::string_view Key::*language, std::string_view name) {
  const auto found = std::ranges::find(table(), name, language);
  return name.empty() || found == table().end() ? nullptr : &*found;
}

const Key* find_key(std::string_view name) {
  for (const auto language : {&Key::deepspeed, &Key::megatron, &Key::axis})
    if (const Key* key = find_key(language, name)) return key;
  return nullptr;
}

bool is_section(std::string_view path) {
  return std::ranges::any_of(table(),
                             [&](const Key& key) { return lies_in(key.deepspeed, path); }) ||
         std::ranges::any_of(words(), [&](const Word& word) { return lies_in(word.from, path); });
}

std::string nearest_key(std::string_view path) {
  std::vector<std::string_view> paths;
  for (const Key& key : table())
    if (key.field && !key.deepspeed.empty()) paths.push_back(key.deepspeed);
  for (const std::string_view known : paths)
    if (last_name(known) == last_name(path)) return std::string(known);
  // Siblings first, sections among them: of a long path most letters are the section's.
  const std::string_view section = section_of(path);
  std::vector<std::string> siblings, all;
  for (const std::string_view known : paths) {
    all.emplace_back(last_name(known));
    if (!section.empty() && !lies_in(known, section)) continue;
    const std::string_view rest = section.empty() ? known : known.substr(section.size() + 1);
    siblings.emplace_back(rest.substr(0, rest.find('.')));
  }
  const std::string name(last_name(path));
  if (const std::string near = machine::nearest(name, siblings); !near.empty())
    return section.empty() ? near : std::string(section) + "." + near;
  const std::string near = machine::nearest(name, all);
  for (const std::string_view known : paths)
    if (!near.empty() && last_name(known) == near) return std::string(known);
  return "";
}

std::vector<std::string> megatron_names() {
  std::vector<std::string> names;
  for (const Key& key : table())
    if (!key.megatron.empty()) names.emplace_back(key.megatron);
  for (const Word& word : words())
    if (word.from.starts_with("--")) names.emplace_back(word.from);
  return names;
}

std::string keys_markdown() {
  std::string out =
      "| key | Megatron-LM | axis | default | values | needs | effect |\n"
      "|---|---|---|---|---|---|---|\n";
  TrainingConfig usual;
  for (const Key& key : table()) {
    std::string values, effect(name(key.effect)), usual_text;
    if (key.field) {
      const Field field = key.field(usual);
      usual_text = field.text();
      values = !key.limits.choices.empty() ? fmt::format("{}", fmt::join(key.limits.choices, ", "))
               : field.kind() == Kind::whole || field.kind() == Kind::number
                   ? fmt::format("{} to {}", key.limits.least, key.limits.most)
                   : std::string(configuration::name(field.kind()));
    }
    if (!key.since.empty()) usual_text += fmt::format(" ({})", key.since);
    if (!key.why.empty()) effect += fmt::format(": {}", key.why);
    if (!key.inert.empty() && key.inert != "*") effect += fmt::format(" (takes {})", key.inert);
    if (!key.instead.empty()) effect += fmt::format("; see {}", key.instead);
    for (std::size_t at = 0; (at = effect.find('|', at)) != std::string::npos; at += 2)
      effect.insert(at, "\\");
    out += fmt::format("| {} | {} | {} | {} | {} | {} | {} |\n", key.deepspeed, key.megatron,
                       key.axis, usual_text, values, key.needs ? key.needs->what : "", effect);
  }
  return out;
}

}  // namespace suite::configuration

#include "suite/configuration/keys.h"

#include <algorithm>
#include <ranges>

#include "machine/base/names.h"

namespace suite::configuration {
namespace {

using Values = std::vector<std::pair<std::string_view, std::string_view>>;

Word older(std::string_view from, std::string_view to, Values values = {}) {
  return {from, to, std::move(values), true};
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

Key row(std::string_view megatron, std::string_view deepspeed, FieldOf field, Limits limits,
        const Needs* needs) {
  return {.megatron = megatron,
          .deepspeed = deepspeed,
          .field = field,
          .limits = std::move(limits),
          .needs = needs};
}

Key axis(std::string_view name, std::string_view deepspeed, FieldOf field, std::string_view about,
         Limits limits, const Needs* needs) {
  Key key = row("", deepspeed, field, std::move(limits), needs);
  if (name.starts_with("--")) key.megatron = name;
  key.axis = name.substr(key.megatron.empty() ? 0 : 2);
  key.about = about;
  return key;
}

bool Key::takes(const Value& value) const {
  if (inert == "*" || std::holds_alternative<std::monostate>(value)) return true;
  return std::ranges::any_of(std::views::split(inert, '|'), [&](const auto& one) {
    const std::string word(one.begin(), one.end());
    if (const auto* const text = std::get_if<std::string>(&value)) return *text == word;
    const Kind kind = std::holds_alternative<bool>(value) ? Kind::truth : Kind::number;
    return value_of(kind, word) == value;
  });
}

std::span<const Key> keys() {
  static const std::vector<Key> all = [] {
    std::vector<Key> rows;
    for (const auto& part :
         {model_keys(), sparse_keys(), step_keys(), zero_keys(), unsupported_keys()})
      rows.insert(rows.end(), part.begin(), part.end());
    return rows;
  }();
  return all;
}

std::span<const Word> words() {
  static const Values to_cpu{{"true", "cpu"}, {"false", "none"}};
  static const std::vector<Word> all{
      {"fp16.enabled", "dtype", {{"true", "half"}}},
      {"bf16.enabled", "dtype", {{"true", "bfloat16"}}},
      older("bfloat16", "bf16"),
      older("zero_optimization.cpu_offload", "zero_optimization.offload_optimizer.device", to_cpu),
      older("zero_optimization.cpu_offload_param", "zero_optimization.offload_param.device",
            to_cpu),
      older("zero_optimization.cpu_offload_params", "zero_optimization.offload_param.device",
            to_cpu),
      older("zero_optimization.cpu_offload_use_pin_memory",
            "zero_optimization.offload_optimizer.pin_memory"),
      older("zero_optimization.stage3_gather_fp16_weights_on_model_save",
            "zero_optimization.stage3_gather_16bit_weights_on_model_save"),
      older("aio.thread_count", "aio.intra_op_parallelism"),
      older("seq_parallel_comm_data_type", "seq_parallel_communication_data_type"),
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
      {"--grad-reduce-in-bf16", "data_types.grad_accum_dtype", {{"true", "bf16"}}},
      {"--overlap-param-gather", "--overlap-grad-reduce"},
      {"--muon-momentum", "--sgd-momentum"},
      {"--muon-use-nesterov", "--muon-nesterov"},
      {"--muon-no-split-qkv", "--muon-split-qkv", {{"true", "false"}}},
      {"--optimizer-cpu-offload", "offload_optimizer", {{"true", "cpu"}}},
      {"--use-distributed-optimizer", "--zero-stage", {{"true", "1"}}},
      {"--data-parallel-sharding-strategy",
       "--zero-stage",
       {{"no_shard", "0"}, {"optim", "1"}, {"optim_grads", "2"}, {"optim_grads_params", "3"}}},
      {"--recompute-activations", "--recompute-granularity", {{"true", "selective"}}},
      older("--checkpoint-activations", "--recompute-granularity", {{"true", "full"}}),
      older("--checkpoint-num-layers", "--recompute-num-layers"),
      {"--checkpoint-in-cpu", "cpu-checkpointing"},
      {"--partition-activations", "--distribute-saved-activations"},
      {"--use-flash-attn-v2", "--use-flash-attn"},
      {"--no-overlap-p2p-communication", "--overlap-p2p-communication", {{"true", "false"}}},
      {"--disable-tp-comm-overlap-ag", "--tp-comm-overlap-ag", {{"true", "false"}}},
      {"--disable-tp-comm-overlap-rs", "--tp-comm-overlap-rs", {{"true", "false"}}},
      {"--disable-tp-comm-bulk-dgrad", "--tp-comm-bulk-dgrad", {{"true", "false"}}},
      {"--disable-tp-comm-bulk-wgrad", "--tp-comm-bulk-wgrad", {{"true", "false"}}},
      older("--tp-comm-split-ag", "--tp-comm-overlap-ag"),
      older("--tp-comm-split-rs", "--tp-comm-overlap-rs"),
  };
  return all;
}

const Key* find_key(std::string_view Key::*language, std::string_view name) {
  const auto found = std::ranges::find(keys(), name, language);
  return name.empty() || found == keys().end() ? nullptr : &*found;
}

const Key* find_key(std::string_view name) {
  for (const auto language : {&Key::deepspeed, &Key::megatron, &Key::axis})
    if (const Key* key = find_key(language, name)) return key;
  return nullptr;
}

bool is_section(std::string_view path) {
  return std::ranges::any_of(keys(),
                             [&](const Key& key) { return lies_in(key.deepspeed, path); }) ||
         std::ranges::any_of(words(), [&](const Word& word) { return lies_in(word.from, path); });
}

std::string nearest_key(std::string_view path) {
  std::vector<std::string_view> paths;
  for (const Key& key : keys())
    if (key.field && !key.deepspeed.empty()) paths.push_back(key.deepspeed);
  const auto path_of = [&](std::string_view name) {
    const auto found = std::ranges::find(paths, name, last_name);
    return std::string(found == paths.end() ? "" : *found);
  };
  if (const std::string same = path_of(last_name(path)); !same.empty()) return same;
  // Compare siblings and sections first: most letters of a long path are its section's.
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
  return path_of(machine::nearest(name, all));
}

std::vector<std::string> megatron_names() {
  std::vector<std::string> names;
  for (const Key& key : keys())
    if (!key.megatron.empty()) names.emplace_back(key.megatron);
  for (const Word& word : words())
    if (word.from.starts_with("--")) names.emplace_back(word.from);
  return names;
}

}  // namespace suite::configuration

#include "suite/training_step/step_sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <any>
#include <filesystem>
#include <stdexcept>

#include "suite/configuration/group_algorithms.h"
#include "suite/configuration/models.h"
#include "suite/configuration/readers.h"
#include "suite/trainer/validation.h"

namespace suite {
namespace {

using configuration::Assignments;
using configuration::Field;
using configuration::Key;
using configuration::Kind;

std::vector<std::string> allowed(const Key& key, Kind kind, bool configured) {
  std::vector<std::string> texts(key.limits.choices.begin(), key.limits.choices.end());
  if (key.axis == "model" && configured) texts.emplace_back("configured");
  if (!texts.empty() && !key.unset.empty()) texts.emplace_back(key.unset);
  if (kind == Kind::truth) texts = {"off", "on"};
  if (kind == Kind::whole && key.limits.most - key.limits.least < 8)
    for (double value = key.limits.least; value <= key.limits.most; ++value)
      texts.push_back(fmt::format("{}", value));
  return texts;
}

std::vector<std::string> expand(const Key& key, Kind kind, std::string_view text) {
  if (key.divide) return key.divide(text);
  if (key.axis == "dtype") return harness::axis_texts<machine::Dtype>(key.axis, text);
  if (key.axis == "transport") return harness::axis_texts<machine::Transport>(key.axis, text);
  if (kind == Kind::truth) return harness::axis_texts<bool>(key.axis, text);
  return kind == Kind::whole && key.unset.empty()
             ? harness::axis_texts<int>(key.axis, text)
             : harness::axis_texts<std::string>(key.axis, text);
}

// Reads the value as a configuration file's value, to throw its error message.
void check_value(const Key& key, const std::string& text) {
  TrainingConfig scratch;
  Assignments said;
  if (text != "configured") read_axis(std::string(key.axis), text, scratch, said);
}

void set(const Key& key, TrainingConfig& config, std::string_view text) {
  const Field field = key.field(config);
  if (!key.unset.empty() && text == key.unset) {
    TrainingConfig fresh;
    field.copy(key.field(fresh));
  } else {
    field.set(configuration::value_of(field.kind(), std::string(text)));
  }
}

// Sets the values of keys that neither an axis nor a configuration sets.
void choose_usual(TrainingConfig& config) {
  TrainingConfig::Optimizer& optimizer = config.optimizer;
  for (const char* decayed :
       {"adafactor", "adamw", "adamw_8bit", "lamb", "lion", "muon", "one_bit_adam", "one_bit_lamb"})
    if (optimizer.type == decayed) optimizer.weight_decay = 0.01;
  if (optimizer.type == "sgd") optimizer.learning_rate = 0.1;
  if (optimizer.type == "muon") optimizer.momentum = 0.95;
  // A small model's gradients are far from the ends of half's range, so this scale skips no step.
  if (config.precision.dtype == machine::Dtype::float16)
    config.precision.loss_scale = {.scaling = zero::LossScaling::megatron, .initial_scale = 1024};
  TrainingConfig::Zero& zero = config.zero;
  zero.overlap_comm = false;
  zero.optimizer_path = zero.parameter_path = std::filesystem::temp_directory_path().string();
  zero.options.offload_param.max_in_cpu = 0;  // else all values would stay in host memory
}

// With DeepSpeed's defaults a small model would stay whole, or be gathered in one step. With these
// sizes vectors stay whole, matrices are sharded, and one layer is gathered ahead.
void choose_sizes(TrainingConfig& config) {
  const std::int64_t hidden = config.model.hidden;
  config.zero.param_persistence_threshold = 4 * hidden;
  config.zero.options.stage3_prefetch_bucket_size =
      12 * hidden * hidden / std::max(config.degrees.tp, 1);
}

void apply_arguments(TrainingConfig& config) {
  const std::string arguments = std::exchange(config.model.arguments, {});
  if (arguments.empty() || arguments == "none") return;
  const std::string source = "model-args";
  Assignments said;
  for (const Key& key : configuration::keys())  // an argument may not contradict an axis
    if (!key.axis.empty() && key.axis != "seq-length")
      said.note(key.field(config), {"", fmt::format("--{}", key.axis)});
  configuration::Notes notes;
  read_megatron(source, configuration::words_of(source, arguments), config, said, notes);
}

}  // namespace

TrainingConfig with_axes(TrainingConfig base, const harness::AxisValues& axes) {
  for (const auto& [axis, value] : axes)
    if (const Key* const key = configuration::find_key(&Key::axis, axis);
        key && value != "configured")
      set(*key, base, value);
  return base;
}

TrainingConfig completed(const TrainingConfig& given) {
  if (given.model.name.empty()) return given;
  TrainingConfig config = given;
  set_model(config, std::exchange(config.model.name, {}));
  choose_usual(config);
  apply_arguments(config);
  complete_shape(config);
  choose_sizes(config);
  return config;
}

std::string why_no_step(const TrainingCase& step) {
  try {
    check_algorithm_names(step.config);  // first: such an error concerns all cases
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  const machine::Degrees& degrees = step.config.degrees;
  if (step.ranks != degrees.ranks())
    return fmt::format(
        "ranks {} is not tensor-model-parallel-size {} x pipeline-model-parallel-size {} x "
        "data-parallel-size {} x context-parallel-size {} = {}",
        step.ranks, degrees.tp, degrees.pp, degrees.dp, degrees.cp, degrees.ranks());
  try {
    validate(completed(step.config));
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

harness::Sweep<TrainingCase> step_sweep(const harness::PlanRequest& request,
                                        const std::map<std::string, std::string>& usual) {
  const auto* configured = std::any_cast<TrainingConfig>(&request.configuration);
  TrainingCase start;
  if (configured) {
    start = {configured->degrees.ranks(), *configured};
  } else {
    start.config.model.name = "small";
    start.config.zero.stage = 1;
  }
  harness::Sweep<TrainingCase> sweep(start);
  for (const Key& key : configuration::keys()) {
    if (key.axis.empty()) continue;
    if (key.axis == "tensor-model-parallel-size")
      sweep.axis("ranks", &TrainingCase::ranks, start.ranks);
    const Kind kind = key.field(start.config).kind();
    const auto own = usual.find(std::string(key.axis));
    const std::string text = configured           ? request.flags.at(std::string(key.axis))
                             : own != usual.end() ? own->second
                                                  : axis_text(key, start.config);
    sweep.axis(
        {.name = std::string(key.axis),
         .values = {},
         .allowed = allowed(key, kind, configured != nullptr),
         .usual = text},
        [&key, kind](std::string_view list) {
          const std::vector<std::string> all = expand(key, kind, list);
          for (const std::string& one : all) check_value(key, one);
          return all;
        },
        [&key, fixed = configured != nullptr](TrainingCase& the_case, const std::string& value) {
          if (!fixed) set(key, the_case.config, value);
        });
  }
  sweep.only(static_cast<std::string (*)(const TrainingCase&)>(why_no_step));
  return sweep;
}

harness::Variation vary(const std::string& axis, const std::vector<std::string>& values) {
  const Key* const key = configuration::find_key(&Key::axis, axis);
  harness::Variation variation{axis, {}};
  for (const std::string& value : values)
    variation.values.push_back(
        {[key, value](void* c) { set(*key, static_cast<TrainingCase*>(c)->config, value); },
         value});
  return variation;
}

Variations grids(const std::vector<int>& ranks, const std::vector<int>& tp,
                 const std::vector<int>& pp, const std::vector<int>& dp,
                 const std::vector<int>& cp) {
  const auto degree = [](const char* axis, const std::vector<int>& values) {
    std::vector<std::string> texts;
    for (const int value : values) texts.push_back(std::to_string(value));
    return vary(axis, texts);
  };
  Variations all{harness::vary(&TrainingCase::ranks, ranks),
                 degree("tensor-model-parallel-size", tp),
                 degree("pipeline-model-parallel-size", pp), degree("data-parallel-size", dp)};
  if (cp != std::vector{1}) all.push_back(degree("context-parallel-size", cp));
  return all;
}

Variations over_cp(const std::string& comm_type, const std::string& order) {
  return {vary("cp-comm-type", {comm_type}), vary("cp-placement", {order}),
          vary("use-flash-attn", {"on"})};
}

Variations operator+(Variations all, const Variations& more);
Variations in_chunks(const std::string& offloading) {
  return over_cp("a2a", "striped") +
         Variations{vary("ds-sequence-parallel-fpdt", {"on"}),
                    vary("ds-sequence-parallel-fpdt-chunk-size", {"12"}),
                    vary("ds-sequence-parallel-fpdt-offloading", {offloading})};
}

Variations operator+(Variations all, const Variations& more) {
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

// Covers experts: without drops and with capacities, both dispatchers, losses in the second forward
// of a recomputed layer, dense layers between, and experts that are divided over ranks; tokens that
// are divided over tp and cp, with a shared expert over tp.
void add_expert_slices(harness::Sweep<TrainingCase>& sweep) {
  using enum harness::Profile;
  const auto moe = [](const char* arguments) {
    return Variations{vary("model", {"moe_tiny"}), vary("global-batch-size", {"8"}),
                      vary("model-args", {arguments})};
  };
  const auto ep = [](const std::vector<std::string>& degrees) {
    return Variations{vary("expert-model-parallel-size", degrees)};
  };
  const auto in_bfloat16 = vary("dtype", {"bfloat16"});
  const Variations over_ranks{vary("dtype", {"float", "bfloat16"}),
                              vary("zero-stage", {"0", "1", "2", "3"}),
                              vary("recompute-granularity", {"none", "selective", "full"})};
  const std::vector full{acceptance, paper};
  const std::string name = "experts";
  sweep.slice(full, name, moe("none") + ep({"1"}) + over_ranks + grids({1, 2}, {1}, {1, 2}, {1, 2}))
      .slice(full, name,
             moe("none") + ep({"2", "4"}) + over_ranks + grids({4, 8}, {1}, {1, 2}, {4}));
  const Variations rows_cut{vary("sequence-parallel", {"on"})},
      stages{vary("zero-stage", {"1", "3"}), vary("recompute-granularity", {"none", "full"})};
  sweep
      .slice(full, name,
             moe("none") + ep({"1", "2", "4"}) + over_ranks + rows_cut + grids({8}, {2}, {1}, {4}))
      .slice(full, name,
             moe("--moe-expert-capacity-factor 1") + ep({"1", "2"}) + stages + rows_cut +
                 over_cp("p2p", "zigzag") + grids({4, 8}, {1, 2}, {1, 2}, {1, 2}, {2}));
  // Experts are split over fewer or more ranks than tp has.
  const auto etp = [](const std::vector<std::string>& degrees) {
    return Variations{vary("expert-tensor-parallel-size", degrees)};
  };
  sweep
      .slice(full, name,
             moe("none") + ep({"1", "2", "4"}) + etp({"1"}) + over_ranks + rows_cut +
                 grids({2, 4, 8}, {2, 4}, {1, 2}, {1, 2}))
      .slice(full, name,
             moe("--moe-token-dispatcher-type allgather --swiglu") + ep({"1", "2"}) + etp({"2"}) +
                 stages + rows_cut + grids({4, 8}, {4}, {1, 2}, {1, 2}))
      .slice(full, name,
             moe("--moe-expert-capacity-factor 1") + ep({"1", "2"}) + etp({"2", "4"}) + stages +
                 grids({4, 8}, {1}, {1, 2}, {4}))
      .slice({smoke}, name,
             moe("--moe-expert-capacity-factor 1 --moe-shared-expert-intermediate-size 48") +
                 ep({"2"}) + etp({"1"}) + grids({4}, {2}, {1}, {2}) + rows_cut +
                 Variations{vary("zero-stage", {"1"})})
      .slice({smoke}, name,  // all ranks of tp hold all experts, and dp is 1
             moe("none") + etp({"1"}) + grids({2}, {2}, {1}, {1}) + rows_cut +
                 Variations{vary("zero-stage", {"2"}), vary("communication-data-type", {"bf16"})})
      .slice({smoke}, name,
             moe("--swiglu --moe-token-dispatcher-type allgather") + etp({"2"}) +
                 grids({4}, {4}, {1}, {1}) + rows_cut +
                 Variations{in_bfloat16, vary("zero-stage", {"3"})})
      .slice({smoke}, name,
             moe("none") + etp({"2"}) + grids({4}, {1}, {1}, {4}) +
                 Variations{vary("zero-stage", {"0"}), vary("optimizer", {"sgd"})});
  const std::vector edges{quick, smoke};
  sweep
      .slice({smoke}, name,
             moe("--moe-expert-capacity-factor 1 --moe-shared-expert-intermediate-size 48") +
                 ep({"2"}) + grids({4}, {2}, {1}, {2}) + rows_cut +
                 Variations{vary("zero-stage", {"1"})})
      .slice({smoke}, name,
             moe("--swiglu --moe-token-dispatcher-type allgather") + ep({"2"}) +
                 grids({4}, {2}, {1}, {1}, {2}) + over_cp("p2p", "zigzag") + rows_cut +
                 Variations{in_bfloat16, vary("micro-batch-size", {"2"})})
      .slice({smoke}, name,
             moe("none") + ep({"4"}) + grids({4}, {1}, {1}, {2}, {2}) +
                 over_cp("all_gather", "striped") +
                 Variations{vary("zero-stage", {"3"}), vary("recompute-granularity", {"full"})})
      .slice(edges, name,
             moe("--moe-expert-capacity-factor 0.75 --moe-token-dispatcher-type allgather") +
                 grids({2}, {1}, {1}, {2}) + Variations{vary("zero-stage", {"2"})})
      .slice(edges, name,
             moe("--num-layers 4 --moe-layer-freq 2 --moe-shared-expert-intermediate-size 48 "
                 "--hidden-dropout 0.1 --swiglu") +
                 grids({2}, {1}, {2}, {1}) +
                 Variations{in_bfloat16, vary("recompute-granularity", {"full"}),
                            vary("micro-batch-size", {"2"}), vary("schedule", {"zb_h1"})})
      .slice({smoke}, name,
             moe("none") + ep({"2"}) + grids({2}, {1}, {1}, {2}) +
                 Variations{vary("zero-stage", {"0"}), vary("uneven-tokens", {"on"})})
      .slice({smoke}, name,
             moe("--moe-expert-capacity-factor 1 --moe-pad-expert-input-to-capacity") + ep({"2"}) +
                 grids({4}, {1}, {1}, {4}) + Variations{vary("zero-stage", {"1"})})
      .slice({smoke}, name,
             moe("--moe-token-dispatcher-type allgather --moe-expert-capacity-factor 1") +
                 ep({"2"}) + grids({4}, {1}, {2}, {2}) +
                 Variations{in_bfloat16, vary("zero-stage", {"3"})});
}

// Covers frozen parameters at both ends of a pipeline, and a table that two stages hold. Every
// model has names for every pattern, because a user may choose another model.
void add_frozen_slices(harness::Sweep<TrainingCase>& sweep) {
  using enum harness::Profile;
  const auto add = [&](const char* model, const char* frozen, const Variations& grid,
                       const Variations& more) {
    sweep.slice({quick, smoke}, "frozen",
                Variations{vary("model", {model}), vary("global-batch-size", {"8"}),
                           vary("freeze", {frozen})} +
                    more + grid);
  };
  const auto rows_cut = vary("sequence-parallel", {"on"});
  add("tiny", "blocks.0.*+head.norm.*", grids({2}, {1}, {1}, {2}), {vary("zero-stage", {"3"})});
  add("tiny", "embedding.*", grids({4}, {2}, {2}, {1}), {rows_cut});
  add("tiny", "*.weight", grids({2}, {1}, {1}, {2}),
      {vary("dtype", {"bfloat16"}), vary("zero-stage", {"2"}), vary("offload_optimizer", {"cpu"})});
  add("bert_tiny", "head.*", grids({2}, {2}, {1}, {1}), {});
  add("t5_tiny", "embedding.*+blocks.0.*", grids({4}, {2}, {2}, {1}), {});
  add("moe_tiny", "blocks.0.*", grids({2}, {1}, {1}, {2}), {});
}

// Covers every recipe, gathers of codes, amaxes over tp and dp, separate halves of backward, and
// recomputed attention.
void add_8_bit_slices(harness::Sweep<TrainingCase>& sweep) {
  using enum harness::Profile;
  const auto in_8_bits = [](const char* model, const char* format, const char* recipe,
                            const char* arguments = "none") {
    return Variations{vary("model", {model}),       vary("global-batch-size", {"8"}),
                      vary("dtype", {"bfloat16"}),  vary("fp8-format", {format}),
                      vary("fp8-recipe", {recipe}), vary("model-args", {arguments})};
  };
  const Variations rows_cut{vary("sequence-parallel", {"on"})};
  const char* const history = "--fp8-margin 1 --fp8-amax-history-len 4 --fp8-amax-compute-algo max";
  const std::string name = "products in 8 bits";
  const std::vector usual{acceptance, paper, smoke};
  sweep
      .slice(usual, name,
             in_8_bits("tiny", "hybrid", "delayed", history) + grids({4}, {2}, {1}, {2}) + rows_cut)
      .slice(usual, name,
             in_8_bits("llama_tiny", "e4m3", "tensorwise") + grids({4}, {2}, {2}, {1}) + rows_cut +
                 Variations{vary("schedule", {"zb_h1"})})
      .slice(usual, name,
             in_8_bits("tiny", "e4m3", "tensorwise") + grids({4}, {2}, {1}, {2}) + rows_cut +
                 Variations{vary("zero-stage", {"2"}), vary("freeze", {"blocks.0.*"})})
      .slice(usual, name,
             in_8_bits("tiny", "hybrid", "blockwise") + grids({2}, {2}, {1}, {1}) +
                 Variations{vary("recompute-granularity", {"selective"})})
      .slice(usual, name,
             in_8_bits("tiny", "e4m3", "mxfp8") + grids({2}, {1}, {1}, {2}) +
                 Variations{vary("zero-stage", {"3"})});
}

// Covers every layout, in heads of their own over tp, with grouped queries, padding, dropout and
// experts; drawn blocks, windows of several sizes and chosen global blocks; and layouts in the
// second forward of recomputed layers.
void add_sparse_slices(harness::Sweep<TrainingCase>& sweep) {
  using enum harness::Profile;
  const auto add = [&](const char* model, const char* mode, const std::string& arguments,
                       const Variations& grid, const Variations& more = {}) {
    sweep.slice({acceptance, paper, smoke}, "sparse attention",
                Variations{vary("model", {model}), vary("global-batch-size", {"8"}),
                           vary("sparse-attention", {mode}), vary("model-args", {arguments})} +
                    grid + more);
  };
  const std::string of_heads = " --sparse-attention-different-layout-per-head",
                    local = " --sparse-attention-num-local-blocks ",
                    sliding = " --sparse-attention-num-sliding-window-blocks ",
                    random = " --sparse-attention-num-random-blocks ",
                    windows = " --sparse-attention-local-window-blocks ",
                    begins = " --sparse-attention-global-block-indices ",
                    ends = " --sparse-attention-global-block-end-indices ",
                    patterns = " --sparse-attention-num-different-global-patterns ",
                    rows_too = " --sparse-attention-horizontal-global-attention";
  const auto in_bfloat16 = vary("dtype", {"bfloat16"}),
             rows_cut = vary("sequence-parallel", {"on"});
  const auto recomputed = [](const char* what) { return vary("recompute-granularity", {what}); };
  add("tiny", "dense", "none", grids({1}, {1}, {1}, {1}), {vary("dtype", {"double"})});
  add("tiny", "fixed", "--seq-length 64" + local + "2" + patterns + "2" + of_heads,
      grids({4}, {4}, {1}, {1}), {rows_cut, vary("zero-stage", {"0"})});
  add("tiny", "variable",
      "--seq-length 64 --hidden-dropout 0.1 --attention-dropout 0.1" + windows + "1+2" + random +
          "1" + of_heads,
      grids({4}, {2}, {1}, {2}), {vary("zero-stage", {"3"}), recomputed("selective")});
  add("tiny", "bigbird", "--seq-length 64" + sliding + "1" + of_heads, grids({4}, {1}, {2}, {2}),
      {in_bfloat16, vary("zero-stage", {"2"}), recomputed("full")});
  add("bert_tiny", "bslongformer", "--seq-length 64" + sliding + "1" + begins + "1" + ends + "3",
      grids({4}, {2}, {2}, {1}), {rows_cut, vary("schedule", {"zb_h1"})});
  add("bert_tiny", "fixed", "--seq-length 64" + local + "2" + rows_too, grids({2}, {1}, {1}, {2}),
      {vary("uneven-tokens", {"on"})});
  add("llama_tiny", "local_sliding_window", "--seq-length 96 --sparse-attention-block 32",
      grids({2}, {2}, {1}, {1}), {in_bfloat16, vary("micro-batch-size", {"2"})});
  add("moe_tiny", "fixed", "--seq-length 64" + local + "1", grids({2}, {1}, {1}, {2}),
      {vary("expert-model-parallel-size", {"2"})});
}

// Covers every grid: squares of 4 and 9 ranks, layers with a square or one rank each, a cube. With
// replicas, all ZeRO stages, separate halves of backward, two stages that hold the table, tokens
// that do not count, and an untied output layer.
void add_tensor_grid_slices(harness::Sweep<TrainingCase>& sweep) {
  using enum harness::Profile;
  const auto add = [&](const std::vector<harness::Profile>& profiles, const char* mode,
                       const char* depth, const char* sequences, const Variations& grid,
                       const Variations& more) {
    sweep.slice(profiles, "tensor grids",
                Variations{vary("model", {"tiny"}), vary("tensor-parallel-mode", {mode}),
                           vary("tensor-parallel-depth", {depth}),
                           vary("micro-batch-size", {sequences}), vary("use-flash-attn", {"on"})} +
                    grid + more);
  };
  const std::vector all{acceptance, paper, smoke}, full{acceptance, paper};
  const auto batch = vary("global-batch-size", {"8"}), in_bfloat16 = vary("dtype", {"bfloat16"});
  const auto stage = [](const char* number) { return vary("zero-stage", {number}); };
  add(all, "2d", "1", "2", grids({4}, {4}, {1}, {1}), {batch, stage("0")});
  add(all, "2d", "1", "2", grids({8}, {4}, {2}, {1}),
      {batch, in_bfloat16, vary("schedule", {"zb_h1"})});
  add(all, "2d", "1", "3", grids({9}, {9}, {1}, {1}),
      {vary("global-batch-size", {"6"}), stage("0"),
       vary("model-args", {"--hidden-size 36 --num-attention-heads 6 --seq-length 36"})});
  add(all, "2d", "1", "2", grids({4}, {4}, {1}, {1}),
      {batch, in_bfloat16, stage("0"), vary("tensor-parallel-product", {"cannon"})});
  add(all, "2.5d", "2", "2", grids({4}, {2}, {1}, {2}),
      {batch, stage("3"), vary("uneven-tokens", {"on"})});
  add(all, "2.5d", "2", "4", grids({8}, {8}, {1}, {1}),
      {batch, stage("0"), vary("model-args", {"--untie-embeddings-and-output-weights"})});
  add(all, "3d", "1", "4", grids({8}, {8}, {1}, {1}), {batch, stage("1")});
  const Variations rounded{batch, vary("dtype", {"float", "bfloat16"})};
  const auto both = vary("transport", {"shared_memory", "mpi"});
  add(full, "2d", "1", "2", grids({4, 8}, {4}, {1, 2}, {1, 2}),
      rounded + Variations{vary("zero-stage", {"0", "1", "2", "3"})});
  add(full, "2d", "1", "2", grids({4}, {4}, {1}, {1}),
      rounded + Variations{both, vary("tensor-parallel-product", {"summa", "cannon"})});
  add(full, "2.5d", "2", "4", grids({8}, {8}, {1}, {1}), rounded + Variations{both});
  add(full, "3d", "1", "4", grids({8}, {8}, {1}, {1}), rounded + Variations{both});
}

}  // namespace suite

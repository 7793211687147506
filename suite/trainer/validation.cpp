#include "suite/trainer/validation.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "layers/models/gpt.h"
#include "layers/models/grids/grid_gpt.h"
#include "suite/configuration/group_algorithms.h"
#include "suite/configuration/keys.h"
#include "suite/trainer/model_chunks.h"
#include "zero/eight_bit/adamw_8bit.h"
#include "zero/matrices/adafactor.h"
#include "zero/matrices/muon.h"
#include "zero/one_bit/one_bit_momenta.h"
#include "zero/stages/compressed_reduction.h"
#include "zero/stages/lamb.h"
#include "zero/stages/step.h"

namespace suite {
namespace {

void validate_batch(const TrainingConfig& config) {
  const auto [micro, global, accumulation] = config.batch;
  if (micro < 1)
    throw std::invalid_argument(fmt::format("micro-batch-size is {}; expected at least 1", micro));
  config.activations.validate_rows(config.own_sequence(), config.degrees.tp, micro);
  const std::int64_t unit = std::int64_t{config.degrees.dp} * micro;
  if (global < 1 || global % unit != 0)
    throw std::invalid_argument(
        fmt::format("global-batch-size {} is not divisible by data-parallel-size {} x "
                    "micro-batch-size {}; the next valid value is {}",
                    global, config.degrees.dp, micro,
                    (std::max<std::int64_t>(global, 1) + unit - 1) / unit * unit));
}

void validate_pipeline(const TrainingConfig& config) {
  const std::string& schedule = config.pipeline.schedule;
  const pipeline::Schedule& actions = pipeline::find_schedule(schedule);
  const pipeline::Size size = pipeline_size(config);
  if (const std::string why = actions.why_not(size); !why.empty()) throw std::invalid_argument(why);
  if (actions.any_chunks && size.chunks == 1)
    throw std::invalid_argument(fmt::format(
        "num-virtual-stages-per-pipeline-rank 1 with schedule {} equals 1f1b; the nearest number "
        "that interleaves is {}",
        schedule, actions.chunks));
  config.activations.validate(config.model, config.degrees.tp,
                              std::ranges::min(layers_of_parts(config)));
}

void validate_context(const TrainingConfig& config) {
  const int cp = config.degrees.cp;
  if (cp == 1 && config.context.fpdt)
    throw std::invalid_argument(
        "ds-sequence-parallel-fpdt requires context-parallel-size 2 or more (got 1)");
  config.context.validate(cp, config.model.sequence, config.model.heads / config.degrees.tp,
                          config.model.query_groups() / config.degrees.tp);
  if (cp > 1 && !config.activations.use_flash_attn)
    throw std::invalid_argument(
        fmt::format("context-parallel-size {} requires use-flash-attn, because attention over cp "
                    "is blockwise",
                    cp));
  if (cp > 1 && config.model.architecture != layers::Architecture::decoder)
    throw std::invalid_argument(
        fmt::format("context-parallel-size {} requires architecture decoder, because attention "
                    "over cp is causal (got {})",
                    cp, name(config.model.architecture)));
  if (cp > 1 && config.model.attention_dropout > 0)
    throw std::invalid_argument(
        fmt::format("context-parallel-size {} requires attention-dropout 0 (got {:g})", cp,
                    config.model.attention_dropout));
}

void validate_sparse(const TrainingConfig& config) {
  const auto& [pattern, block] = config.model.sparse;
  if (!config.model.sparse.on()) return;
  if (config.degrees.cp > 1)
    throw std::invalid_argument(fmt::format(
        "sparse_attention.mode {} requires context-parallel-size 1, because a layout has "
        "blocks of whole sequences (got {})",
        name(pattern.mode), config.degrees.cp));
  const std::string of_model = config.model.encoder() ? "bidirectional" : "unidirectional";
  const std::string& direction = config.model.sparse_direction;
  if (pattern.mode != layers::SparseMode::dense && !direction.empty() && direction != of_model)
    throw std::invalid_argument(
        fmt::format("sparse_attention.attention is {}; expected {} with architecture {}", direction,
                    of_model, name(config.model.architecture)));
}

void validate_experts(const TrainingConfig& config) {
  const int ep = config.expert_parallel, etp = config.expert_tensor(), tp = config.degrees.tp;
  if (!config.model.has_experts() && (ep > 1 || etp != tp))
    throw std::invalid_argument(
        fmt::format("expert-{}-parallel-size is {}; expected {} without num-experts",
                    ep > 1 ? "model" : "tensor", ep > 1 ? ep : etp, ep > 1 ? 1 : tp));
  if (!config.model.has_experts()) return;
  config.model.mixture().validate(ep, etp);
  if (etp == tp && config.shards() % ep != 0)
    throw std::invalid_argument(
        fmt::format("expert-model-parallel-size is {}; expected a divisor of data-parallel-size {}",
                    ep, config.shards()));
  if (tp * config.shards() % (ep * etp) != 0)
    throw std::invalid_argument(fmt::format(
        "expert-model-parallel-size {} x expert-tensor-parallel-size {} is {}; expected a divisor "
        "of tensor- x context- x data-parallel-size {}",
        ep, etp, ep * etp, tp * config.shards()));
  if (config.experts_apart() && config.zero.overlaps())
    throw std::invalid_argument(
        fmt::format("expert-{}-parallel-size requires overlap_comm off, because gradients of "
                    "experts have their own group",
                    ep > 1 ? "model" : "tensor"));
  check_experts(config.step_options(), {ep, etp}, tp);
  const auto refuse = [](std::string_view needs) {
    throw std::invalid_argument(fmt::format("num-experts requires {}", needs));
  };
  if (config.degrees.tp > 1 && !config.activations.sequence_parallel)
    refuse(
        fmt::format("sequence-parallel with tensor-model-parallel-size {}, because each rank of tp "
                    "must have its own tokens",
                    config.degrees.tp));
  if (!config.zero.options.gradient_compression.algorithm.empty())
    refuse("no gradient-compression, because its reference has no decisions of routers");
  if (config.optimizer.is_one_bit() && config.shards() > 1)
    refuse("no 1-bit optimizer, because its reference has no decisions of routers");
  if (config.optimizer.is_8bit())
    refuse("another optimizer than adamw_8bit, whose reference has no decisions of routers");
}

// Residuals of a skipped step would stay, and a new loss scale would not apply to them.
void validate_compression(const TrainingConfig& config) {
  check_compression(config.zero.stage, config.step_options(), config.shards(),
                    config.gradient_dtype());
  if (config.zero.options.gradient_compression.algorithm.empty()) return;
  if (config.shards() == 1)
    throw std::invalid_argument(
        "gradient-compression requires data-parallel-size x context-parallel-size 2 or more (got "
        "1)");
  if (config.optimizer.type == "lion")
    throw std::invalid_argument(
        "gradient-compression requires an optimizer whose steps follow the gradient's size (got "
        "lion)");
  if (config.optimizer.type == "adafactor")
    throw std::invalid_argument(
        "gradient-compression requires an optimizer with a bound for small errors of the gradient "
        "(got adafactor)");
  if (config.optimizer.is_8bit())
    throw std::invalid_argument(
        "gradient-compression requires an optimizer whose reference takes compressed sums (got "
        "adamw_8bit)");
  if (config.precision.dtype == machine::Dtype::float16)
    throw std::invalid_argument(
        "gradient-compression requires dtype float or bfloat16 (got half), because residuals do "
        "not follow a loss scale");
}

void validate_one_bit(const TrainingConfig& config, const zero::MatrixLimits& limits) {
  check_one_bit(config.optimizer.rule(),
                {config.zero.stage, config.shards(), limits.ep, limits.value_dtype, limits.offloads,
                 !limits.compression.empty()});
}

void validate_8_bits(const TrainingConfig& config) {
  const layers::Fp8Options& fp8 = config.fp8;
  layers::validate_fp8(config.model, config.activations, config.precision.dtype, fp8);
  if (!fp8.on()) return;
  if (config.precision.dtype == machine::Dtype::float16)
    throw std::invalid_argument(
        fmt::format("fp8-format {} requires dtype float or bfloat16 (got half), because the range "
                    "of its gradients has no bound",
                    name(fp8.format)));
  if (size_of(config.gradient_dtype()) == 2)
    throw std::invalid_argument(
        fmt::format("fp8-format {} requires gradients that are added up in fp32 (got {})",
                    name(fp8.format), machine::name(config.gradient_dtype())));
  const int block = fp8.recipe == layers::Fp8Recipe::blockwise ? 128
                    : fp8.recipe == layers::Fp8Recipe::mxfp8   ? 32
                                                               : 1;
  const int rows = config.batch.micro_batch_size * config.own_sequence() / config.degrees.tp;
  if (config.activations.sequence_parallel && rows % block != 0)
    throw std::invalid_argument(
        fmt::format("fp8-recipe {} with sequence-parallel requires micro-batch-size x sequence / "
                    "tp that {} divides (got {})",
                    name(fp8.recipe), block, rows));
}

// An error of half a step of a code in 4 bits is not small for all elements of a block.
void validate_codes(const TrainingConfig& config) {
  if (!config.zero.options.plus_plus.quantized_gradients || config.shards() == 1) return;
  for (const auto& [type, why] :
       {std::pair("lion", "a step has one size, however small the error of the gradient"),
        {"muon", "Newton-Schulz multiplies small errors of a gradient"},
        {"adafactor", "a small row of a matrix may change without limit"}})
    if (config.optimizer.type == type)
      throw std::invalid_argument(fmt::format(
          "zero_quantized_gradients requires another optimizer than {}, because {}", type, why));
}

void validate_grid(const TrainingConfig& config) {
  const layers::TensorGrid grid = config.grid();
  layers::grid_plan(grid, layers::PairPlace::first, layers::GridProduct::ab,
                    config.tensor_grid.product);  // rejects products that the grid does not have
  if (!config.over_grid()) return;
  const layers::ActivationOptions& activations = config.activations;
  const auto refuse_unless = [&](bool met, std::string_view needs, std::string_view got) {
    if (!met)
      throw std::invalid_argument(
          fmt::format("tensor-parallel-mode {} requires {} (got {})", name(grid.mode), needs, got));
  };
  refuse_unless(config.degrees.tp > 1, "tensor-model-parallel-size 2 or more",
                std::to_string(config.degrees.tp));
  refuse_unless(config.degrees.cp == 1,
                "context-parallel-size 1, because a rank of a grid has whole sequences",
                std::to_string(config.degrees.cp));
  refuse_unless(!activations.sequence_parallel,
                "sequence-parallel off, because a grid splits the rows between the products, too",
                "on");
  refuse_unless(activations.use_flash_attn,
                "use-flash-attn, because attention over a grid is blockwise", "off");
  refuse_unless(activations.recompute_granularity == layers::RecomputeGranularity::none,
                "recompute-granularity none", name(activations.recompute_granularity));
  refuse_unless(!activations.fused_epilogues, "fused-epilogues off", "on");
  refuse_unless(!activations.tp_comm.enabled, "tp-comm-overlap off", "on");
  refuse_unless(!config.fp8.on(), "fp8-format none", name(config.fp8.format));
  refuse_unless(config.algorithms.tp.empty(),
                "tp-algorithm default, because broadcasts and reductions have their own",
                config.algorithms.tp);
  refuse_unless(size_of(config.gradient_dtype()) > 2, "gradients that are added up in fp32",
                machine::name(config.gradient_dtype()));
  const std::string& type = config.optimizer.type;
  refuse_unless(type == "adamw" || type == "sgd" || type == "rmsprop" || type == "lion",
                "optimizer adamw, sgd, rmsprop or lion, whose update of an element needs no other",
                type);
  const std::string& compression = config.zero.options.gradient_compression.algorithm;
  refuse_unless(compression.empty(), "gradient-compression none", compression);
  const zero::PlusPlusOptions& plus_plus = config.zero.options.plus_plus;
  refuse_unless(!plus_plus.quantized_weights, "zero_quantized_weights off", "on");
  refuse_unless(!plus_plus.quantized_gradients, "zero_quantized_gradients off", "on");
  refuse_unless(config.frozen.empty(), "freeze none", config.frozen);
  refuse_unless(config.pipeline.partition_method == "uniform", "partition-method uniform",
                config.pipeline.partition_method);
  refuse_unless(config.weights.empty(), "no file of weights", config.weights);
  if (const std::string why =
          layers::why_no_grid_gpt(config.model, grid, config.batch.micro_batch_size);
      !why.empty())
    throw std::invalid_argument(why);
}

}  // namespace

void validate(const TrainingConfig& config) {
  const machine::Degrees& degrees = config.degrees;
  config.model.validate(config.over_grid() ? 1 : degrees.tp);
  const int stage = config.zero.stage;
  if (stage < 0 || stage >= zero::num_stages)
    throw std::invalid_argument(
        fmt::format("zero-stage is {}; expected 0 to {}", stage, zero::num_stages - 1));
  configuration::check_demands(config);
  const zero::StepOptions& options = config.zero.options;
  if (config.zero.overlaps() && config.shards() > 1 && config.transport == machine::Transport::mpi)
    throw std::invalid_argument(
        "overlap_comm requires transport shared_memory, which supports several threads, or "
        "cuda_ipc "
        "or nccl, which have streams (got mpi)");
  config.check_gradient_dtypes();
  validate_compression(config);
  validate_sparse(config);
  validate_context(config);
  validate_experts(config);
  validate_batch(config);
  validate_grid(config);
  check(options.offload_param, stage, options.offload_optimizer);
  check_lamb(config.step_options(), config.precision.dtype, config.gradient_dtype(),
             config.expert_parallel);
  const zero::MatrixLimits limits{config.precision.dtype, config.gradient_dtype(),
                                  config.expert_parallel,
                                  options.offload_optimizer.device != zero::OffloadDevice::none ||
                                      options.offload_param.offloads(),
                                  options.gradient_compression.algorithm};
  check_muon(config.optimizer.rule(), limits);
  check_adafactor(config.optimizer.rule(), limits);
  check_adamw_8bit(config.optimizer.rule(), limits);
  validate_one_bit(config, limits);
  if (config.optimizer.type == "adafactor" && degrees.pp > 1 &&
      std::max(degrees.tp, config.shards()) > 2 &&
      !config.model.untie_embeddings_and_output_weights)
    throw std::invalid_argument(fmt::format(
        "optimizer adafactor with a tied embedding over pipeline stages requires at most 2 ranks "
        "of "
        "tp and of dp (got {} and {}), because two stages would add the table's squares in "
        "different orders",
        degrees.tp, config.shards()));
  check(options.plus_plus, {.stage = stage,
                            .dp = config.shards(),
                            .ep = config.expert_parallel,
                            .offloads_values = options.offload_param.offloads(),
                            .values = config.precision.dtype,
                            .gradients = config.gradient_dtype(),
                            .wire = config.step_options().communication_data_type,
                            .predivision = zero::predivision(options, config.shards())});
  validate_codes(config);
  config.learning_rate();
  validate_pipeline(config);
  validate_algorithms(config);
  validate_8_bits(config);
}

}  // namespace suite

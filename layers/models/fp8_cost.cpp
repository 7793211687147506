#include "layers/models/fp8_cost.h"

namespace layers {
namespace {

// Blocks of [rows, cols] along one extent, and the bytes of their scales.
struct Coding {
  explicit Coding(Fp8Recipe recipe)
      : block(recipe == Fp8Recipe::blockwise ? 128
              : recipe == Fp8Recipe::mxfp8   ? 32
                                             : 0),
        scale_bytes(recipe == Fp8Recipe::mxfp8 ? 1 : 4),
        square(recipe == Fp8Recipe::blockwise) {}
  std::int64_t block, scale_bytes;
  bool square;  // blocks of weights

  bool one_scale() const { return block == 0; }
  std::int64_t blocks(std::int64_t extent) const { return (extent + block - 1) / block; }
  // Return the bytes of codes and scales; `along` is the extent of the sum.
  std::int64_t matrix(std::int64_t across, std::int64_t along) const {
    return across * along + (one_scale() ? 0 : scale_bytes * across * blocks(along));
  }
  std::int64_t weight(std::int64_t across, std::int64_t along) const {
    if (!square) return matrix(across, along);
    return across * along + scale_bytes * blocks(across) * blocks(along);
  }
};

Dtype of_gradients(const StageCase& stage) {
  return stage.fp8.format == Fp8Format::hybrid ? Dtype::float8_e5m2 : Dtype::float8_e4m3;
}

// in, out: of a rank. gathers_d_y: of a row-parallel layer with sequence parallelism.
Fp8LinearMemory linear_memory(const GptConfig& config, const StageCase& stage, std::int64_t in,
                              std::int64_t out, bool gathers_d_y) {
  const Coding coding(stage.fp8.recipe);
  const std::int64_t n = stage.tokens(config);
  const bool narrow = stage.dtype != Dtype::float32;
  const auto bytes = [](std::int64_t count) { return static_cast<std::size_t>(count); };
  const auto floats = [](std::int64_t elements) { return 4 * elements; };
  Fp8LinearMemory memory;
  memory.forward = bytes(coding.matrix(n, in) + coding.weight(out, in) + floats(n * in + out * in) +
                         (narrow ? floats(n * out) : 0));
  memory.backward_input = bytes(coding.matrix(n, out) + coding.weight(in, out) +
                                floats(n * out + out * in) + (narrow ? floats(n * in) : 0));
  const std::int64_t d_y = coding.matrix(out, n);
  memory.backward_weights =
      bytes(coding.matrix(in, n) + (gathers_d_y ? 0 : d_y) + floats(n * (in + out)));
  if (gathers_d_y) {
    memory.gathered = bytes(n * out);
    memory.gathered_scales = bytes(d_y) - memory.gathered;
    if (!config.disable_bias_linear) memory.bias_sums = bytes(floats(out));
  }
  if (!coding.one_scale()) return memory;
  memory.scale = memory.scale_of_d_y = memory.inverse_of_d_y = floats(2);
  if (gathers_d_y) {
    memory.inverse_of_d_y = floats(1);
    memory.backward_input -= memory.gathered;  // the same codes
  }
  memory.state = floats(2);  // scale of the weight
  // The recorded amaxes, histories, scales and inverses of x, the weight and d_y.
  if (stage.fp8.recipe == Fp8Recipe::delayed)
    memory.state += bytes(floats(3 * (3 + std::int64_t{stage.fp8.amax_history_len})));
  return memory;
}

}  // namespace

std::vector<CollectiveCalls> fp8_calls(const GptConfig& config, const StageCase& stage,
                                       Fp8Pass pass) {
  using machine::Operation;
  std::vector<CollectiveCalls> all;
  if (!stage.fp8.on()) return all;
  const Coding coding(stage.fp8.recipe);
  const std::int64_t n = stage.tokens(config), h = config.hidden;
  const int layers = stage.stage.blocks(config).size();
  const bool gathers = stage.options.sequence_parallel && stage.tp > 1,
             forward = pass == Fp8Pass::forward, weights = pass == Fp8Pass::backward_weights;
  const auto add = [&](const char* group, int ranks, Operation operation, Dtype dtype,
                       std::int64_t elements, int calls) {
    if (ranks > 1) all.push_back({group, operation, dtype, ranks, elements, calls * layers});
  };
  const auto gather = [&](Dtype codes, bool along_rows) {
    add("tp", stage.tp, Operation::all_gather, codes, n * h, 2);
    if (!coding.one_scale())
      add("tp", stage.tp, Operation::all_gather,
          coding.scale_bytes == 1 ? Dtype::uint8 : Dtype::float32,
          along_rows ? coding.blocks(n) * h : n * coding.blocks(h), 2);
  };
  if (gathers) {
    const bool backward = pass == Fp8Pass::backward_input;
    gather(backward ? of_gradients(stage) : Dtype::float8_e4m3, weights);
    if (backward && !coding.one_scale()) gather(of_gradients(stage), true);
    if (stage.fp8.recipe == Fp8Recipe::tensorwise && !weights)
      add("tp", stage.tp, Operation::all_reduce, Dtype::float32, 1, 2);
  }
  if (stage.fp8.recipe == Fp8Recipe::delayed && !weights)
    add("fp8", stage.amax_ranks, Operation::all_reduce, Dtype::float32, forward ? 2 : 1, 4);
  return all;
}

Fp8BlockMemory fp8_memory(const GptConfig& config, const StageCase& stage) {
  if (!stage.fp8.on()) return {};
  const std::int64_t h = config.hidden, t = stage.tp;
  const bool rows_cut = stage.options.sequence_parallel;
  return {linear_memory(config, stage, h, config.qkv() / t, false),
          linear_memory(config, stage, h / t, h, rows_cut),
          linear_memory(config, stage, h, config.inner() / t, false),
          linear_memory(config, stage, config.ffn() / t, h, rows_cut)};
}

std::size_t fp8_state(const GptConfig& config, const StageCase& stage) {
  return static_cast<std::size_t>(stage.stage.blocks(config).size()) *
         fp8_memory(config, stage).state();
}

}  // namespace layers

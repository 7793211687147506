#include "layers/models/fp8_cost.h"

#include <algorithm>

#include "layers/fp8/scaled_products.h"

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

// Buffers that cuBLASLt's products need besides the operands (machine/device/float8/scaled_gemm.h),
// and those of choosing the scales of blocks. outer: the extent across the sum.
struct LibraryBuffers {
  Coding coding;

  static std::int64_t whole(std::int64_t extent, std::int64_t of) {
    return (extent + of - 1) / of * of;
  }
  // along_cols: the sum is along the columns of the stored codes.
  std::int64_t copies(std::int64_t outer, std::int64_t along, bool along_cols) const {
    const std::int64_t codes = along_cols ? 0 : outer * along;
    if (coding.one_scale()) return codes;
    if (!coding.square) return codes + tiles(outer, along);
    return codes + (along_cols ? 4 * outer * coding.blocks(along) : 0);
  }
  std::int64_t copies_of_weight(std::int64_t outer, std::int64_t along, bool along_cols) const {
    if (!coding.square) return copies(outer, along, along_cols);
    const std::int64_t blocks = coding.blocks(along), padded = whole(blocks, 4);
    if (along_cols && blocks == padded) return 0;
    return (along_cols ? 0 : outer * along) + 4 * coding.blocks(outer) * padded;
  }
  // Largest magnitudes, and float scales, of the blocks while a matrix is encoded.
  std::int64_t encoding(std::int64_t blocks_outer, std::int64_t along) const {
    return coding.one_scale() ? 0 : (coding.square ? 8 : 4) * blocks_outer * coding.blocks(along);
  }
  std::int64_t encoding_weight(std::int64_t outer, std::int64_t along) const {
    return encoding(coding.square ? coding.blocks(outer) : outer, along);
  }

 private:
  std::int64_t tiles(std::int64_t outer, std::int64_t along) const {
    return whole(outer, 128) * whole(coding.blocks(along), 4);
  }
};

enum class Gathers : unsigned char { none, x, d_y };  // with sequence parallelism

// in, out: of a rank.
Fp8LinearMemory linear_memory(const GptConfig& config, const StageCase& stage, std::int64_t in,
                              std::int64_t out, Gathers gathers) {
  const Fp8Recipe recipe = stage.fp8.recipe;
  const Coding coding(recipe);
  const LibraryBuffers library{coding};
  const std::int64_t n = stage.tokens(config), own = n / stage.tp;
  const Fp8LinearShape shape{n, in, out};
  const bool narrow = stage.dtype != Dtype::float32, gathers_d_y = gathers == Gathers::d_y;
  const auto bytes = [](std::int64_t count) { return static_cast<std::size_t>(count); };
  const auto floats = [](std::int64_t elements) { return 4 * elements; };
  const auto emulated = [&](const machine::ScaledProduct& product) {
    return !machine::why_not_scaled_gemm(stage.compute_capability, product).empty();
  };
  // Besides the operands, while a product runs: they are decoded, or copied for the library.
  const auto beside = [&](const machine::ScaledProduct& product, std::int64_t sums,
                          std::int64_t copies) {
    if (!emulated(product)) return copies;
    return floats(product.rows * product.inner + product.inner * product.cols + sums);
  };
  Fp8LinearMemory memory;
  const std::int64_t x = coding.matrix(n, in), w = coding.weight(out, in);
  // The own codes exist until they are gathered. The other operand exists while the weight is
  // encoded.
  memory.forward = bytes(
      std::max({x + w +
                    beside(shape.forward(recipe), narrow ? n * out : 0,
                           library.copies(n, in, true) + library.copies_of_weight(out, in, true)),
                x + (gathers == Gathers::x ? coding.matrix(own, in) : library.encoding(n, in)),
                x + w + library.encoding_weight(out, in)}));
  const std::int64_t d_y = coding.matrix(n, out), w_again = coding.weight(in, out);
  memory.backward_input = bytes(
      std::max({d_y + w_again +
                    beside(shape.input_gradient(recipe), narrow ? n * in : 0,
                           library.copies(n, out, true) + library.copies_of_weight(in, out, false)),
                d_y + (gathers_d_y ? coding.matrix(own, out) : library.encoding(n, out)),
                d_y + w_again + library.encoding_weight(in, out)}));
  const std::int64_t d_y_again = coding.matrix(out, n);
  memory.backward_weights =
      bytes(coding.matrix(in, n) + (gathers_d_y ? 0 : d_y_again) +
            beside(shape.weight_gradient(recipe), 0,
                   library.copies(out, n, false) + library.copies(in, n, false)));
  if (gathers_d_y) {
    memory.gathered = bytes(n * out);
    memory.gathered_scales = bytes(d_y_again) - memory.gathered;
    if (!config.disable_bias_linear) memory.bias_sums = bytes(floats(out));
    if (!coding.one_scale()) memory.gathered_again = bytes(coding.matrix(out, own) + d_y_again);
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
  const Gathers column = rows_cut ? Gathers::x : Gathers::none,
                row = rows_cut ? Gathers::d_y : Gathers::none;
  return {linear_memory(config, stage, h, config.qkv() / t, column),
          linear_memory(config, stage, h / t, h, row),
          linear_memory(config, stage, h, config.inner() / t, column),
          linear_memory(config, stage, config.ffn() / t, h, row)};
}

std::string why_emulated_fp8(const GptConfig& config, const StageCase& stage) {
  const std::int64_t n = stage.tokens(config), h = config.hidden, t = stage.tp;
  for (const Fp8LinearShape& shape : {Fp8LinearShape{n, h, config.qkv() / t},
                                      {n, h / t, h},
                                      {n, h, config.inner() / t},
                                      {n, config.ffn() / t, h}})
    if (std::string why = shape.why_emulated(stage.fp8.recipe, stage.compute_capability);
        !why.empty())
      return why;
  return "";
}

std::size_t fp8_state(const GptConfig& config, const StageCase& stage) {
  return static_cast<std::size_t>(stage.stage.blocks(config).size()) *
         fp8_memory(config, stage).state();
}

}  // namespace layers

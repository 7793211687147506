#include "suite/layers/fp8_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

namespace suite {
namespace {

using collectives::CollectiveCalls;

// The sizes of a layer's operands on a rank, and of the blocks that share a scale (0: none).
struct Sizes {
  explicit Sizes(const Fp8Case& c)
      : n(c.tokens),
        in(c.column() ? c.input_size : c.input_size / c.ranks),
        out(c.column() ? c.output_size / c.ranks : c.output_size),
        block(c.fp8_recipe == "blockwise" ? 128
              : c.fp8_recipe == "mxfp8"   ? 32
                                          : 0),
        bytes_of_scale(c.fp8_recipe == "mxfp8" ? 1 : 4),
        square(c.fp8_recipe == "blockwise") {}

  std::int64_t n, in, out, block, bytes_of_scale;
  bool square;  // blocks of weights

  std::int64_t blocks(std::int64_t extent) const { return (extent + block - 1) / block; }
  // Codes and scales of [rows, cols] with blocks along the columns or along the rows.
  std::int64_t along_cols(std::int64_t rows, std::int64_t cols) const {
    return rows * cols + (block == 0 ? 0 : bytes_of_scale * rows * blocks(cols));
  }
  std::int64_t along_rows(std::int64_t rows, std::int64_t cols) const {
    return along_cols(cols, rows);
  }
  std::int64_t weight(bool rows) const {
    if (square) return out * in + bytes_of_scale * blocks(out) * blocks(in);
    return rows ? along_rows(out, in) : along_cols(out, in);
  }
};

std::string why_no_product(const Fp8Case& c) {
  for (const auto& [axis, value] : {std::pair("tokens", c.tokens),
                                    {"input_size", c.input_size},
                                    {"output_size", c.output_size}})
    if (value < 1)
      throw harness::UsageError(fmt::format("--{} is {}; expected at least 1", axis, value));
  try {
    c.options().validate();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  const auto not_divided = [](std::string_view what, int value, std::string_view by, int divisor) {
    return value % divisor == 0
               ? std::string()
               : fmt::format("{} is {}; expected a multiple of {} {} (example: {})", what, value,
                             by, divisor, std::max(1, value / divisor) * divisor);
  };
  std::string why = not_divided(c.column() ? "output_size" : "input_size",
                                c.column() ? c.output_size : c.input_size, "ranks", c.ranks);
  if (!why.empty() || !c.sequence_parallel) return why;
  if (c.ranks == 1) return "sequence-parallel requires ranks 2 or more (got 1)";
  const auto block = static_cast<int>(std::max<std::int64_t>(1, Sizes(c).block));
  return not_divided("sequence-parallel: tokens", c.tokens,
                     block == 1 ? "ranks" : "ranks x the block of fp8-recipe", c.ranks * block);
}

}  // namespace

layers::Fp8Options Fp8Case::options() const {
  return {.format = layers::fp8_format(fp8_format),
          .recipe = layers::fp8_recipe(fp8_recipe),
          .margin = fp8_margin,
          .amax_history_len = fp8_amax_history_len,
          .algorithm = layers::amax_algorithm(fp8_amax_compute_algo)};
}

Fp8LinearQuestion Fp8Case::question() const {
  return {.ranks = ranks,
          .column = column(),
          .e5m2_gradients = fp8_format == "hybrid",
          .recipe = fp8_recipe,
          .margin = fp8_margin,
          .history = fp8_amax_history_len,
          .of_largest = fp8_amax_compute_algo == "max",
          .tokens = tokens,
          .in = input_size,
          .out = output_size};
}

Sweep<Fp8Case> fp8_sweep() {
  using Case = Fp8Case;
  using enum Profile;
  Sweep<Case> sweep;
  sweep.axis("transport", &Case::transport, Transport::shared_memory)
      .axis("dtype", &Case::dtype, Dtype::bfloat16,
            {Dtype::float32, Dtype::bfloat16, Dtype::float16})
      .axis("ranks", &Case::ranks, 2)
      .axis("parallel-mode", &Case::parallel_mode, "column", {"column", "row"})
      .axis("fp8-format", &Case::fp8_format, "hybrid", {"hybrid", "e4m3"})
      .axis("fp8-recipe", &Case::fp8_recipe, "delayed",
            {"delayed", "tensorwise", "blockwise", "mxfp8"})
      .axis("fp8-margin", &Case::fp8_margin, 0)
      .axis("fp8-amax-history-len", &Case::fp8_amax_history_len, 1)
      .axis("fp8-amax-compute-algo", &Case::fp8_amax_compute_algo, "most_recent",
            {"most_recent", "max"})
      .axis("sequence-parallel", &Case::sequence_parallel, false)
      .axis("tokens", &Case::tokens, 256)
      .axis("input_size", &Case::input_size, 192)
      .axis("output_size", &Case::output_size, 384);
  sweep.only(why_no_product);
  const auto recipes = vary(&Case::fp8_recipe, {"delayed", "tensorwise", "blockwise", "mxfp8"}),
             modes = vary(&Case::parallel_mode, {"column", "row"}),
             formats = vary(&Case::fp8_format, {"hybrid", "e4m3"}),
             dtypes = vary(&Case::dtype, {Dtype::float32, Dtype::bfloat16}),
             rows = vary(&Case::sequence_parallel, {true}),
             histories = vary(&Case::fp8_amax_history_len, {3}),
             margins = vary(&Case::fp8_margin, {2}),
             algorithms = vary(&Case::fp8_amax_compute_algo, {"most_recent", "max"}),
             mpi = vary(&Case::transport, {Transport::mpi});
  const auto ranks = [](std::vector<int> all) { return vary(&Case::ranks, std::move(all)); };
  const auto sizes = [](int tokens, int in, int out) {
    return std::vector{vary(&Case::tokens, {tokens}), vary(&Case::input_size, {in}),
                       vary(&Case::output_size, {out})};
  };
  const auto with = [](std::vector<harness::Variation> some,
                       const std::vector<harness::Variation>& more) {
    some.insert(some.end(), more.begin(), more.end());
    return some;
  };
  sweep.slice({quick}, "gathers", {recipes, modes, rows})
      .slice({quick}, "history",
             {histories, margins, vary(&Case::fp8_amax_compute_algo, {"max"}), mpi})
      // Blocks at the borders are smaller.
      .slice({quick}, "edges",
             with({recipes, ranks({3}), vary(&Case::dtype, {Dtype::float32})}, sizes(61, 201, 309)))
      .slice({acceptance, paper}, "matrix", {recipes, modes, formats, dtypes, ranks({1, 2, 4, 8})})
      .slice({acceptance, paper}, "gathers",
             {recipes, modes, formats, rows, dtypes, ranks({2, 4, 8}), vary(&Case::tokens, {1024})})
      .slice({acceptance, paper}, "history",
             {histories, margins, algorithms, modes, formats, ranks({2, 4})})
      .slice({acceptance, paper}, "transports", {mpi, recipes, modes, rows, ranks({2})})
      .slice({smoke}, "smoke", with({recipes, modes}, sizes(13, 264, 140)))
      // Extents that a GPU's library takes, with blocks at the borders, and few columns.
      .slice({smoke}, "smoke", with({recipes, modes}, sizes(48, 288, 320)))
      .slice({smoke}, "smoke", with({recipes, modes, rows}, sizes(256, 32, 64)))
      .slice({smoke}, "smoke",
             with({histories, margins, rows, vary(&Case::fp8_format, {"e4m3"}),
                   vary(&Case::fp8_amax_compute_algo, {"max"}), modes},
                  sizes(14, 22, 30)));
  return sweep;
}

std::vector<CollectiveCalls> fp8_calls(const Fp8Case& c, Pass pass) {
  if (c.ranks == 1) return {};
  const Sizes z(c);
  std::vector<CollectiveCalls> calls;
  const auto add = [&](Operation operation, Dtype dtype, std::int64_t elements) {
    calls.push_back({"tp", operation, dtype, c.ranks, elements, 1});
  };
  const auto gather = [&](Dtype float8, std::int64_t cols, bool along_rows) {
    add(Operation::all_gather, float8, z.n * cols);
    if (z.block > 0)
      add(Operation::all_gather, z.bytes_of_scale == 1 ? Dtype::uint8 : Dtype::float32,
          along_rows ? z.n / z.block * cols : z.n * z.blocks(cols));
  };
  const auto sum = [&](std::int64_t cols) {
    add(c.sequence_parallel ? Operation::reduce_scatter : Operation::all_reduce, c.dtype,
        z.n * cols);
  };
  const bool shares = c.fp8_recipe == "tensorwise" && c.sequence_parallel,
             delayed = c.fp8_recipe == "delayed";
  const Dtype gradients = c.fp8_format == "hybrid" ? Dtype::float8_e5m2 : Dtype::float8_e4m3;
  const auto amaxes = [&](std::int64_t count) {
    add(Operation::all_reduce, Dtype::float32, count);
  };
  switch (pass) {
    case Pass::forward:
      if (c.column() && shares) amaxes(1);
      if (c.column() && c.sequence_parallel) gather(Dtype::float8_e4m3, c.input_size, false);
      if (!c.column()) sum(c.output_size);
      if (delayed) amaxes(2);
      break;
    case Pass::backward_input:
      if (!c.column() && shares) amaxes(1);
      if (!c.column() && c.sequence_parallel) {
        gather(gradients, c.output_size, false);
        if (z.block > 0) gather(gradients, c.output_size, true);
      }
      if (c.column()) sum(c.input_size);
      if (delayed) amaxes(1);
      break;
    case Pass::backward_weights:
      if (c.column() && c.sequence_parallel) gather(Dtype::float8_e4m3, c.input_size, true);
      break;
  }
  return calls;
}

layers::Fp8LinearShape fp8_shape(const Fp8Case& c) {
  const Sizes z(c);
  return {z.n, z.in, z.out};
}

namespace {

// Bytes that a product of cuBLASLt needs besides its operands
// (machine/device/float8/scaled_gemm.h): codes transposed so that the sum is along the columns, and
// the scales of blocks in its layouts.
struct Copies {
  const Sizes& z;

  static std::int64_t ceil(std::int64_t extent, std::int64_t of) {
    return (extent + of - 1) / of * of;
  }
  std::int64_t tiles(std::int64_t outer, std::int64_t sum) const {
    return ceil(outer, 128) * ceil(z.blocks(sum), 4);
  }
  // An operand as it is stored, and one that is stored transposed.
  std::int64_t direct(std::int64_t outer, std::int64_t sum) const {
    if (z.block == 0) return 0;
    return z.square ? 4 * outer * z.blocks(sum) : tiles(outer, sum);
  }
  std::int64_t turned(std::int64_t outer, std::int64_t sum) const {
    return outer * sum + (z.block == 32 ? tiles(outer, sum) : 0);
  }
  std::int64_t direct_weight(std::int64_t outer, std::int64_t sum) const {
    if (!z.square) return direct(outer, sum);
    return z.blocks(sum) % 4 == 0 ? 0 : 4 * z.blocks(outer) * ceil(z.blocks(sum), 4);
  }
  std::int64_t turned_weight(std::int64_t outer, std::int64_t sum) const {
    if (!z.square) return turned(outer, sum);
    return outer * sum + 4 * z.blocks(outer) * ceil(z.blocks(sum), 4);
  }
  // The magnitudes, and float scales, of the blocks while the weight is encoded.
  std::int64_t encoding_weight(std::int64_t outer, std::int64_t sum) const {
    if (z.block == 0) return 0;
    return z.square ? 8 * z.blocks(outer) * z.blocks(sum) : 4 * outer * z.blocks(sum);
  }
  std::int64_t encoding(std::int64_t outer, std::int64_t sum) const {
    return z.block == 0 ? 0 : (z.square ? 8 : 4) * outer * z.blocks(sum);
  }
};

}  // namespace

// The peak of an emulated pass is in its product, when both operands exist as codes and as floats,
// and the float sums of a narrower result. In addition to the copies of a library's product, an
// operand that is encoded or gathered may need more.
Fp8Memory fp8_memory(const Fp8Case& c, int compute_capability) {
  const Sizes z(c);
  const Copies copies{z};
  const bool one_scale = z.block == 0, wide = c.dtype == Dtype::float32,
             rows_cut = c.sequence_parallel;
  const layers::Fp8Recipe recipe = c.options().recipe;
  const layers::Fp8LinearShape shape = fp8_shape(c);
  const auto E = static_cast<std::int64_t>(size_of(c.dtype));
  const auto beside = [&](const machine::ScaledProduct& product, std::int64_t floats,
                          std::int64_t of_library) {
    const bool decodes = !machine::why_not_scaled_gemm(compute_capability, product).empty();
    return decodes ? 4 * floats : of_library;
  };
  const std::int64_t scales = one_scale ? 8 : 0;  // a factor and its inverse
  const std::int64_t own = z.n / c.ranks;
  const std::int64_t x = z.along_cols(z.n, z.in), d_y = z.along_cols(z.n, z.out);
  const std::int64_t of_y = rows_cut && !c.column() ? E * z.n * z.out : 0,
                     of_d_x = rows_cut && c.column() ? E * z.n * z.in : 0;
  const std::int64_t forward =
      of_y +
      std::max(
          {x + z.weight(false) +
               beside(shape.forward(recipe), z.n * z.in + z.out * z.in + (wide ? 0 : z.n * z.out),
                      copies.direct(z.n, z.in) + copies.direct_weight(z.out, z.in)),
           x + (rows_cut && c.column() ? z.along_cols(own, z.in) : copies.encoding(z.n, z.in)),
           x + z.weight(false) + copies.encoding_weight(z.out, z.in)});
  // Sums of the columns of d_y, whose codes alone are kept for the gradient of the bias.
  const bool gathers_d_y = rows_cut && !c.column();
  const std::int64_t sums = gathers_d_y ? 4 * z.out : 0;
  const std::int64_t input =
      scales + sums + of_d_x +
      std::max(
          {d_y + z.weight(true) +
               beside(shape.input_gradient(recipe),
                      z.n * z.out + z.out * z.in + (wide ? 0 : z.n * z.in),
                      copies.direct(z.n, z.out) + copies.turned_weight(z.in, z.out)),
           d_y + (gathers_d_y ? z.along_cols(own, z.out) : copies.encoding(z.n, z.out)),
           d_y + z.weight(true) + copies.encoding_weight(z.in, z.out),
           gathers_d_y && !one_scale ? z.along_rows(own, z.out) + z.along_rows(z.n, z.out) : 0});
  // With gathered codes only the inverse is kept.
  const std::int64_t weights = z.along_rows(z.n, z.in) + z.along_rows(z.n, z.out) + sums +
                               beside(shape.weight_gradient(recipe), z.n * (z.in + z.out),
                                      copies.turned(z.in, z.n) + copies.turned(z.out, z.n)) +
                               (gathers_d_y ? scales / 2 : scales);
  // Delayed scaling has two tensors forward and one backward: recorded amaxes, history, scales.
  const std::int64_t state =
      c.fp8_recipe == "delayed" ? 3 * 4 * (3 + std::int64_t{c.fp8_amax_history_len}) : 0;
  return {static_cast<std::size_t>(scales),
          static_cast<std::size_t>(state + scales + std::max({forward, input, weights}))};
}

}  // namespace suite

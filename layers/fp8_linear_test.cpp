// Linear layers in 8 bits: the products of the codes that the layers use, the scale of a
// micro-batch in flight, bytes, and options that are rejected. The unit fp8_linear derives codes
// and scales a second time.

#include <cmath>
#include <map>

#include "layers/column_parallel_linear.h"
#include "layers/fp8/fp8_products.h"
#include "layers/row_parallel_linear.h"
#include "layers/testing/sharded_case.h"

namespace layers::testing {
namespace {

using machine::Category, machine::Dtype, machine::Tensor;
using Values = std::vector<double>;

// Decodes every operand, by product and name.
class Decoded final : public Fp8Observer {
 public:
  void operand(std::string_view product, std::string_view what, const Quantized& codes) override {
    const Tensor values(codes.codes.device(), Dtype::float32, codes.codes.shape(),
                        Category::buffers);
    machine::decode(values.device().stream(), codes.codes, codes.blocks, codes.inverse, values);
    values_[std::string(product) + " " + std::string(what)] = machine::to_doubles(values);
    dtypes_[std::string(product) + " " + std::string(what)] = codes.codes.dtype();
  }
  const Values& at(const std::string& operand) const { return values_.at(operand); }
  Dtype dtype(const std::string& operand) const { return dtypes_.at(operand); }

 private:
  std::map<std::string, Values> values_;
  std::map<std::string, Dtype> dtypes_;
};

void make_values(const Rank& rank, const Parameters& parameters) {
  for (collectives::Parameter* parameter : parameters) {
    Initializer{.weight_stddev = 1, .residual_stddev = 1}.fill(rank.context, {parameter});
    zero_gradient(rank.context, *parameter);
  }
}

// c [m, n] = sum over k of a(i, k) b(k, j), and the sizes of its terms.
void expect_product(const Values& c, std::int64_t m, std::int64_t n, std::int64_t k,
                    const Values& a, bool a_transposed, const Values& b, bool b_transposed) {
  ASSERT_EQ(c.size(), static_cast<std::size_t>(m * n));
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < n; ++j) {
      double value = 0, size = 0;
      for (std::int64_t l = 0; l < k; ++l) {
        const double term =
            a[a_transposed ? l * m + i : i * k + l] * b[b_transposed ? j * k + l : l * n + j];
        value += term;
        size += std::abs(term);
      }
      ASSERT_LE(std::abs(c[i * n + j] - value), gamma(static_cast<double>(k), 0x1p-24) * size)
          << i << ", " << j;
    }
}

TEST(Fp8Linear, ProductsAreThoseOfTheCodes) {
  constexpr std::int64_t tokens = 40, in = 72, out = 136;  // no multiples of 32 or 128
  for (const Fp8Recipe recipe :
       {Fp8Recipe::delayed, Fp8Recipe::tensorwise, Fp8Recipe::blockwise, Fp8Recipe::mxfp8})
    for (const Fp8Format format : {Fp8Format::hybrid, Fp8Format::e4m3})
      on_ranks(1, Dtype::float32, [&](Rank& rank) {
        Decoded seen;
        rank.context.fp8 = {{.format = format, .recipe = recipe}, nullptr, &seen};
        ColumnParallelLinear layer(rank.context, "fc", in, out, {.bias = false});
        make_values(rank, layer.parameters());
        const Tensor x = scatter(rank, random_values(tokens * in, 1, Dtype::float32), {tokens, in}),
                     d_y = scatter(rank, random_values(tokens * out, 2, Dtype::float32),
                                   {tokens, out}),
                     y = rank.context.tensor({tokens, out}, Category::buffers),
                     d_x = rank.context.tensor({tokens, in}, Category::buffers);
        layer.forward(x, y);
        layer.backward_input(d_y, d_x);
        layer.backward_weights(x, d_y);
        expect_product(to_doubles(y), tokens, out, in, seen.at("forward x"), false,
                       seen.at("forward W"), true);
        expect_product(to_doubles(d_x), tokens, in, out, seen.at("input_gradient d_y"), false,
                       seen.at("input_gradient W"), false);
        expect_product(to_doubles(layer.parameters()[0]->gradient), out, in, tokens,
                       seen.at("weight_gradient d_y"), true, seen.at("weight_gradient x"), false);
        const Dtype gradients =
            format == Fp8Format::hybrid ? Dtype::float8_e5m2 : Dtype::float8_e4m3;
        EXPECT_EQ(seen.dtype("forward x"), Dtype::float8_e4m3);
        EXPECT_EQ(seen.dtype("input_gradient W"), Dtype::float8_e4m3);
        EXPECT_EQ(seen.dtype("weight_gradient x"), Dtype::float8_e4m3);
        EXPECT_EQ(seen.dtype("input_gradient d_y"), gradients);
        EXPECT_EQ(seen.dtype("weight_gradient d_y"), gradients);
      });
}

// Two micro-batches in flight: the second forward changes the delayed scale, and the first one's
// weight gradient uses the scale of its own forward.
TEST(Fp8Linear, AMicroBatchKeepsItsScale) {
  on_ranks(1, Dtype::float32, [](Rank& rank) {
    Decoded seen;
    rank.context.fp8 = {{.format = Fp8Format::hybrid}, nullptr, &seen};
    RowParallelLinear layer(rank.context, "fc", 4, 4, {.bias = false});
    make_values(rank, layer.parameters());
    const Tensor first = scatter(rank, {1, 2, 3, 4, 5, 6, 7, 8.3}, {2, 4}),
                 second = scatter(rank, {1, 2, 3, 4, 5, 6, 7, 30.1}, {2, 4}),
                 d_y = scatter(rank, random_values(8, 3, Dtype::float32), {2, 4}),
                 y = rank.context.tensor({2, 4}, Category::buffers);
    layer.forward(first, y);
    const Values codes = seen.at("forward x");
    EXPECT_EQ(codes.back(), 8);  // the first scale is 1
    layer.forward(second, y);
    layer.backward_weights(first, layer.backward_input(d_y, y));
    EXPECT_EQ(seen.at("weight_gradient x"), codes);
    layer.backward_weights(second, layer.backward_input(d_y, y));
    EXPECT_NE(seen.at("weight_gradient x").back(), 30.1);
    EXPECT_THROW(layer.backward_weights(second, d_y), std::logic_error);
  });
}

// The sequence-parallel gathers send one byte an element, and the scales of blocks. Delayed scaling
// sends 2 floats forward and 1 backward; tensorwise the amax of the gathered tensor.
TEST(Fp8Linear, GathersCodes) {
  constexpr std::int64_t own = 128, n = 128;
  struct Sent {
    Fp8Recipe recipe;
    std::uint64_t amax_of_forward, amax_of_gathered, amax_of_backward, scales;
  };
  // Two ranks: a small all-reduce sends its floats once. 128 rows of 1 or 4 blocks.
  for (const auto& [recipe, forward, gathered, backward, scales] :
       {Sent{Fp8Recipe::delayed, 8, 0, 4, 0},
        {Fp8Recipe::tensorwise, 0, 4, 0, 0},
        {Fp8Recipe::blockwise, 0, 0, 0, 512},
        {Fp8Recipe::mxfp8, 0, 0, 0, 512}})
    on_ranks(2, Dtype::bfloat16,
             [&, recipe = recipe, amax = forward, gathered = gathered, of_backward = backward,
              scales = scales](Rank& rank) {
               rank.context.sequence_parallel = true;
               rank.context.fp8.options = {.format = Fp8Format::hybrid, .recipe = recipe};
               ColumnParallelLinear column(rank.context, "column", n, 2 * n);
               RowParallelLinear row(rank.context, "row", 2 * n, n);
               make_values(rank, joined({column.parameters(), row.parameters()}));
               const auto tensor = [&](std::int64_t rows, std::int64_t cols) {
                 const Tensor filled = rank.context.tensor({rows, cols}, Category::buffers);
                 rank.context.kernels().fill(filled, 1);
                 return filled;
               };
               const Tensor x = tensor(own, n), inner = tensor(2 * own, n);
               const auto sent = [&](auto work) {
                 rank.tp.link().reset_traffic();
                 work();
                 return rank.tp.link().total().bytes_sent;
               };
               const std::uint64_t codes = own * n,
                                   values = 2 * codes;  // bfloat16 in the reduce-scatters
               Tensor all;
               EXPECT_EQ(sent([&] { column.forward(x, inner); }), codes + scales + amax + gathered);
               EXPECT_EQ(sent([&] { row.forward(inner, x); }), values + amax);
               EXPECT_EQ(sent([&] { all = row.backward_input(x, inner); }),
                         (scales > 0 ? 2 : 1) * (codes + scales) + of_backward + gathered);
               EXPECT_EQ(sent([&] { row.backward_weights(inner, all); }), 0u);
               EXPECT_EQ(sent([&] { column.backward_input(inner, x); }), values + of_backward);
               EXPECT_EQ(sent([&] { column.backward_weights(x, inner); }), codes + scales);
             });
}

// A tensor whose shards are gathered has one scale, and the degree does not change the codes.
TEST(Fp8Linear, CodesOfGatheredRowsDoNotDependOnTheDegree) {
  constexpr std::int64_t tokens = 64, in = 48, out = 64;
  for (const Fp8Recipe recipe : {Fp8Recipe::tensorwise, Fp8Recipe::mxfp8}) {
    Values of_one, of_two;
    for (Values* const codes : {&of_one, &of_two})
      on_ranks(codes == &of_one ? 1 : 2, Dtype::float32, [&](Rank& rank) {
        Decoded seen;
        rank.context.sequence_parallel = rank.tp.size() > 1;
        rank.context.fp8 = {{.format = Fp8Format::hybrid, .recipe = recipe}, nullptr, &seen};
        ColumnParallelLinear layer(rank.context, "fc", in, out);
        make_values(rank, layer.parameters());
        const Tensor x = scatter(rank, random_values(tokens * in, 1, Dtype::float32), {tokens, in},
                                 cut_of_rows(rank.context.sequence_parallel)),
                     y = rank.context.tensor({tokens, out / rank.tp.size()}, Category::buffers);
        layer.forward(x, y);
        if (rank.world.rank() + 1 == rank.tp.size()) *codes = seen.at("forward x");
      });
    EXPECT_EQ(of_one, of_two) << name(recipe);
  }
}

TEST(Fp8Linear, RejectsOptionsThatExclude) {
  on_ranks(2, Dtype::float32, [](Rank& rank) {
    const auto why = [](const auto& work) -> std::string {
      try {
        work();
      } catch (const std::invalid_argument& error) {
        return error.what();
      }
      return "accepted";
    };
    rank.context.fp8.options = {.format = Fp8Format::hybrid, .recipe = Fp8Recipe::blockwise};
    EXPECT_EQ(why([&] { ColumnParallelLinear(rank.context, "fc", 4, 8, {.gather_output = true}); }),
              "fc: gather_output does not support fp8-format");
    EXPECT_EQ(
        why([&] { RowParallelLinear(rank.context, "fc", 4, 8, {.input_is_parallel = false}); }),
        "fc: input_is_parallel false does not support fp8-format");
    Context context = rank.context;
    context.overlap.enabled = true;
    EXPECT_EQ(why([&] { RowParallelLinear(context, "fc", 4, 8); }),
              "fc: tp-comm-overlap does not support fp8-format");
    context.overlap.enabled = false;
    context.dtype = Dtype::float64;
    EXPECT_EQ(why([&] { RowParallelLinear(context, "fc", 4, 8); }),
              "fp8-format hybrid requires dtype float, bfloat16 or half (got double)");
    rank.context.sequence_parallel = true;
    ColumnParallelLinear layer(rank.context, "fc", 4, 8, {.bias = false});
    make_values(rank, layer.parameters());
    const Tensor x = rank.context.tensor({2, 4}, Category::buffers),
                 y = rank.context.tensor({4, 4}, Category::buffers);
    rank.context.kernels().fill(x, 1);
    rank.context.kernels().fill(y, 1);
    layer.forward(x, y);  // blocks along a row
    EXPECT_EQ(
        why([&] { layer.backward_input(y, x), layer.backward_weights(x, y); }),
        "fp8-recipe blockwise with sequence-parallel requires rows of a rank that 128 divides "
        "(got 2)");
  });
}

}  // namespace
}  // namespace layers::testing

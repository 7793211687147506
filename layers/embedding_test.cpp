// A lookup and the addition of two numbers are exact up to one rounding at every degree, because
// the all-reduce only adds zeros. Degrees therefore agree to the bit, forward and backward. The
// exception is the gradient of positions with sequence parallelism, which adds its rows in another
// order.

#include "layers/embedding.h"

#include "layers/testing/reference_model.h"
#include "layers/testing/sharded_case.h"

namespace layers::testing {
namespace {

using machine::Dtype;
using machine::Tensor;

constexpr int vocabulary = 36, hidden = 5, sequence = 6;

Observed run(int tp, Dtype dtype, int sequences, bool sequence_parallel = false) {
  const std::int64_t rows = std::int64_t{sequences} * sequence;
  const std::vector<std::int32_t> tokens = random_tokens(rows, 3, vocabulary);
  const std::vector<double> d_x = random_values(rows * hidden, 4, dtype);
  return observe(tp, dtype, [&](Rank& rank) {
    rank.context.sequence_parallel = sequence_parallel;
    const int cut = cut_of_rows(sequence_parallel);
    collectives::Parameter table = declare_token_table(rank.context, vocabulary, hidden, false);
    Embedding embedding(rank.context, table, {.sequence = sequence});
    large_values(1).fill(rank.context, embedding.parameters());
    for (collectives::Parameter* parameter : embedding.parameters()) {
      zero_gradient(rank.context, *parameter);
      // The gradient of an earlier micro-batch. If it is summed over tp, only one rank holds it.
      if (!parameter->placement.gradient_partial_over_tp || rank.tp.rank() == 0)
        rank.context.kernels().fill(parameter->gradient, 0.25);
    }
    const Tensor x =
        rank.context.tensor({rank.context.own_rows(rows), hidden}, machine::Category::buffers);
    embedding.forward(tokens.data(), x);
    embedding.backward_weights(tokens.data(), scatter(rank, d_x, {rows, hidden}, cut));
    Observed seen;
    seen["x"] = gather(rank, x, {rows, hidden}, cut);
    for (collectives::Parameter* parameter : embedding.parameters())
      seen[parameter->name] = gather(rank, *parameter, parameter->value);
    observe_gradients(rank, embedding.parameters(), seen);
    return seen;
  });
}

class EmbeddingDegrees : public ::testing::TestWithParam<Dtype> {};

TEST_P(EmbeddingDegrees, AgreeToTheBit) {
  for (const int sequences : {1, 2}) {
    const Observed whole = run(1, GetParam(), sequences);
    for (const int tp : {2, 4}) EXPECT_EQ(run(tp, GetParam(), sequences), whole) << tp;
  }
  // The rows of a rank begin and end within a sequence.
  for (const auto& [tp, sequences] : {std::pair(2, 1), {2, 3}, {4, 2}, {4, 6}}) {
    Observed whole = run(1, GetParam(), sequences), cut = run(tp, GetParam(), sequences, true);
    for (Observed* seen : {&whole, &cut}) seen->erase("gradient of embedding.position.weight");
    EXPECT_EQ(cut, whole) << tp << " " << sequences;
  }
}

TEST_P(EmbeddingDegrees, LookUpAndAdd) {
  const Dtype dtype = GetParam();
  const GptConfig config{.hidden = hidden, .vocabulary = vocabulary, .sequence = sequence};
  const Observed seen = run(4, dtype, 2);
  const auto tokens = random_tokens(2 * sequence, 3, vocabulary);
  const reference::Values want = reference::embedding(seen, tokens, config);
  const std::vector<double>& x = seen.at("x");
  ASSERT_EQ(x.size(), want.size());
  for (std::size_t i = 0; i < x.size(); ++i)
    EXPECT_LE(std::abs(x[i] - want[i]), machine::unit_roundoff(dtype) * std::abs(want[i])) << i;
}

TEST_P(EmbeddingDegrees, GradientIsTheSumOverItsRows) {
  const Dtype dtype = GetParam();
  const double u = machine::unit_roundoff(collectives::gradient_dtype(dtype));
  for (const bool sequence_parallel : {false, true}) {
    const Observed seen = run(2, dtype, 3, sequence_parallel);
    const auto tokens = random_tokens(3 * sequence, 3, vocabulary);
    const auto d_x = random_values(3 * sequence * hidden, 4, dtype);
    const auto check = [&](const std::vector<double>& gradient, auto row_of) {
      reference::Values sum(gradient.size(), 0.25), size(gradient.size(), 0.25);
      for (std::size_t row = 0; row < tokens.size(); ++row) {
        for (std::size_t i = 0; i < hidden; ++i) {
          sum[row_of(row) * hidden + i] += d_x[row * hidden + i];
          size[row_of(row) * hidden + i] += std::abs(d_x[row * hidden + i]);
        }
      }
      for (std::size_t i = 0; i < sum.size(); ++i) {
        // At most, every row adds to one element. The double sum here rounds as often.
        const double terms = static_cast<double>(tokens.size());
        const double bound = gamma(terms, u) + gamma(terms, machine::unit_roundoff(Dtype::float64));
        EXPECT_LE(std::abs(gradient[i] - sum[i]), bound * size[i]);
      }
    };
    check(seen.at("gradient of embedding.token.weight"),
          [&](std::size_t row) { return static_cast<std::size_t>(tokens[row]); });
    check(seen.at("gradient of embedding.position.weight"),
          [](std::size_t row) { return row % sequence; });
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, EmbeddingDegrees, ::testing::ValuesIn(machine::floating_dtypes),
                         [](const auto& info) { return std::string(name(info.param)); });

}  // namespace
}  // namespace layers::testing

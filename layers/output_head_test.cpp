// Compares the loss and its gradients with plain loops in double, degrees with one rank, and types
// with double. The split vocabulary costs three all-reduces.

#include "layers/output_head.h"

#include "layers/embedding.h"
#include "layers/testing/reference_model.h"
#include "layers/testing/sharded_case.h"

namespace layers::testing {
namespace {

using machine::Category;
using machine::Dtype;
using machine::Tensor;

const GptConfig config{.hidden = 12, .vocabulary = 44};

Observed run(int tp, Dtype dtype, std::int64_t rows, Dtype rounded_to,
             bool sequence_parallel = false, int table_rows = config.vocabulary,
             int vocabulary = config.vocabulary) {
  const machine::Shape shape{rows, config.hidden};
  const std::vector<double> x = random_values(shape.size(), 1, rounded_to);
  const std::vector<std::int32_t> targets = random_tokens(rows, 2, vocabulary);
  return observe(tp, dtype, [&](Rank& rank) {
    rank.context.sequence_parallel = sequence_parallel;
    const int cut = cut_of_rows(sequence_parallel);
    collectives::Parameter table =
        declare_token_table(rank.context, table_rows, config.hidden, false);
    OutputHead head(rank.context, table, config);
    head.set_vocabulary(vocabulary);
    large_values(5).fill(rank.context, head.parameters());
    round_values(rank, head.parameters(), rounded_to);
    for (collectives::Parameter* p : head.parameters()) zero_gradient(rank.context, *p);
    const Tensor loss(rank.world.device(), Dtype::float64, {1}, Category::buffers);
    const Tensor d_x =
        rank.context.tensor({rank.context.own_rows(rows), config.hidden}, Category::buffers);
    OutputHead::Saved saved;
    head.forward(scatter(rank, x, shape, cut), targets.data(), loss, saved);
    head.backward_input(0.5, d_x, saved, Category::buffers);
    head.backward_weights(saved);
    Observed seen;
    seen["loss"] = gather(rank, loss, {1});
    seen["d_x"] = gather(rank, d_x, shape, cut);
    for (collectives::Parameter* p : head.parameters()) seen[p->name] = gather(rank, *p, p->value);
    observe_gradients(rank, head.parameters(), seen);
    return seen;
  });
}

TEST(OutputHead, LossMatchesTheReference) {
  for (const int tp : {1, 2, 4}) {
    const std::int64_t rows = 15;
    const Observed seen = run(tp, Dtype::float64, rows, Dtype::float64);
    const double want = reference::loss(random_values(rows * config.hidden, 1, Dtype::float64),
                                        seen, random_tokens(rows, 2, config.vocabulary), config);
    EXPECT_LE(relative_error(seen.at("loss"), {want}),
              norm_bound_from_double(Dtype::float64, 1, config.vocabulary))
        << tp;
  }
}

// The results equal those of a table without padding. All rows of the last rank may be padding.
TEST(OutputHead, IgnoresPadding) {
  const std::int64_t rows = 12;
  for (const int vocabulary : {43, 33, 30}) {
    const Observed exact =
        run(1, Dtype::float64, rows, Dtype::float64, false, vocabulary, vocabulary);
    for (const int tp : {1, 2, 4}) {
      SCOPED_TRACE(std::to_string(vocabulary) + " tokens, tp " + std::to_string(tp));
      Observed padded = run(tp, Dtype::float64, rows, Dtype::float64, false, 44, vocabulary);
      const std::size_t real = static_cast<std::size_t>(vocabulary * config.hidden);
      std::vector<double>& gradient = padded.at("gradient of embedding.token.weight");
      for (std::size_t i = real; i < gradient.size(); ++i) ASSERT_EQ(gradient[i], 0) << i;
      gradient.resize(real);
      padded.at("embedding.token.weight").resize(real);
      expect_within(padded, exact, norm_bound_from_double(Dtype::float64, 1, config.vocabulary));
    }
  }
}

class OutputHeadTypes : public ::testing::TestWithParam<Dtype> {};

TEST_P(OutputHeadTypes, EveryDegreeIsNearDouble) {
  for (const std::int64_t rows : {1, 12}) {
    const Observed exact = run(1, Dtype::float64, rows, GetParam());
    for (const int tp : {1, 2, 4}) {
      SCOPED_TRACE("tp " + std::to_string(tp));
      const double bound = norm_bound_from_double(GetParam(), 1, config.vocabulary);
      expect_within(run(tp, GetParam(), rows, GetParam()), exact, bound);
      if (tp > 1 && rows % tp == 0)
        expect_within(run(tp, GetParam(), rows, GetParam(), true), exact, bound);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, OutputHeadTypes, ::testing::ValuesIn(machine::floating_dtypes),
                         [](const auto& info) { return std::string(name(info.param)); });

}  // namespace
}  // namespace layers::testing

// Tests a block (norms, attention, perceptron, residual sums) of GPT-2 and of Llama. Compares it
// with plain loops in double, degrees with one rank, and types with double.

#include "layers/models/transformer_block.h"

#include "layers/testing/reference_model.h"
#include "layers/testing/sharded_case.h"

namespace layers::testing {
namespace {

using machine::Category;
using machine::Dtype;
using machine::Tensor;

const GptConfig gpt2{.hidden = 32, .heads = 8, .sequence = 6};
const GptConfig shapes[] = {gpt2, llama(gpt2)};

Observed run(const GptConfig& config, int tp, Dtype dtype, int sequences, Dtype rounded_to,
             bool sequence_parallel = false, bool overlap = false) {
  const std::int64_t rows = std::int64_t{sequences} * config.sequence;
  const machine::Shape shape{rows, config.hidden};
  const std::vector<double> x = random_values(shape.size(), 1, rounded_to);
  const std::vector<double> d_y = random_values(shape.size(), 2, rounded_to);
  return observe(tp, dtype, [&](Rank& rank) {
    rank.context.sequence_parallel = sequence_parallel;
    rank.context.overlap.enabled = overlap;
    const int cut = cut_of_rows(sequence_parallel);
    const machine::Shape own{rank.context.own_rows(rows), config.hidden};
    TransformerBlock block(rank.context, "block", config);
    large_values(11).fill(rank.context, block.parameters());
    round_values(rank, block.parameters(), rounded_to);
    for (collectives::Parameter* p : block.parameters()) zero_gradient(rank.context, *p);
    const Tensor y = rank.context.tensor(own, Category::buffers);
    const Tensor d_x = rank.context.tensor(own, Category::buffers);
    Observed seen;
    {
      TransformerBlock::Saved saved;
      block.forward(scatter(rank, x, shape, cut), y, saved, Category::activations);
      block.backward_input(scatter(rank, d_y, shape, cut), d_x, saved,
                           overlap ? Category::buffers : Category::activations);
      block.backward_weights(saved);
      EXPECT_EQ(rank.world.device().ledger().current(Category::activations), 0u);
    }
    seen["y"] = gather(rank, y, shape, cut);
    seen["d_x"] = gather(rank, d_x, shape, cut);
    for (collectives::Parameter* p : block.parameters()) seen[p->name] = gather(rank, *p, p->value);
    observe_gradients(rank, block.parameters(), seen);
    return seen;
  });
}

TEST(TransformerBlock, MatchesTheReference) {
  for (const GptConfig& config : shapes) {
    for (const int tp : {1, 2, 4}) {
      for (const int sequences : {1, 2}) {
        const Observed seen = run(config, tp, Dtype::float64, sequences, Dtype::float64);
        const auto x = random_values(std::int64_t{sequences} * config.sequence * config.hidden, 1,
                                     Dtype::float64);
        EXPECT_LE(relative_error(seen.at("y"), reference::block(x, seen, "block", config)),
                  norm_bound_from_double(Dtype::float64, 1, config.ffn()))
            << "tp " << tp << ", sequences " << sequences;
      }
    }
  }
}

class TransformerBlockTypes : public ::testing::TestWithParam<Dtype> {};

TEST_P(TransformerBlockTypes, EveryDegreeIsNearDouble) {
  for (const GptConfig& config : shapes) {
    for (const int sequences : {1, 2}) {
      const Observed exact = run(config, 1, Dtype::float64, sequences, GetParam());
      for (const int tp : {1, 2, 4}) {
        SCOPED_TRACE("tp " + std::to_string(tp));
        const double bound = norm_bound_from_double(GetParam(), 1, config.ffn());
        expect_within(run(config, tp, GetParam(), sequences, GetParam()), exact, bound);
        if (tp > 1 && sequences * config.sequence % tp == 0)
          for (const bool overlap : {false, true})
            expect_within(run(config, tp, GetParam(), sequences, GetParam(), true, overlap), exact,
                          bound);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, TransformerBlockTypes,
                         ::testing::ValuesIn(machine::floating_dtypes),
                         [](const auto& info) { return std::string(name(info.param)); });

}  // namespace
}  // namespace layers::testing

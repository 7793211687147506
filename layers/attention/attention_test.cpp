// Compares attention with plain loops in double, degrees with one rank, and types with double.

#include "layers/attention/attention.h"

#include "layers/testing/reference_model.h"
#include "layers/testing/sharded_case.h"

namespace layers::testing {
namespace {

using machine::Dtype;
using machine::Tensor;

const GptConfig config{.hidden = 24, .heads = 4, .sequence = 9};
GptConfig grouped() {  // two heads per group; at tp 4, a rank has one key head
  GptConfig result = llama({.hidden = 32, .heads = 8, .sequence = 9});
  result.rotary_base = 100;  // large rotations even in a short sequence
  return result;
}
const GptConfig llamas = grouped();
GptConfig dropping() {
  GptConfig result = llamas;
  result.attention_dropout = 0.3;
  return result;
}
GptConfig dropping_heads() {  // a group for each head: one call of the kernel for all of them
  GptConfig result = config;
  result.attention_dropout = 0.3;
  return result;
}
const GptConfig shapes[] = {
    config, llamas, dropping(), dropping_heads(), bert(dropping_heads()), bert(llamas)};
// Without padding, of the two sequences of an encoder.
const std::vector<std::int32_t> lengths{5, 9}, sparse_lengths{20, 64};
// Inputs of later sequences of the training.
constexpr Draw draw_of(const GptConfig& shape) { return {3, 5 * std::int64_t{shape.sequence}}; }

struct Options {
  bool sequence_parallel = false, recompute = false, blockwise = false;
  std::vector<std::int32_t> lengths = testing::lengths;
};

Observed run(const GptConfig& config, int tp, Dtype dtype, int sequences, Dtype rounded_to,
             Options options = {}) {
  const std::int64_t rows = std::int64_t{sequences} * config.sequence;
  const machine::Shape shape{rows, config.hidden};
  const std::vector<double> x = random_values(shape.size(), 1, rounded_to);
  const std::vector<double> d_y = random_values(shape.size(), 2, rounded_to);
  return observe(tp, dtype, [&](Rank& rank) {
    rank.context.sequence_parallel = options.sequence_parallel;
    rank.context.recompute_core_attention = options.recompute;
    rank.context.flash_attention = options.blockwise;
    const int cut = cut_of_rows(options.sequence_parallel);
    const machine::Shape own{rank.context.own_rows(rows), config.hidden};
    Attention attention(rank.context, "attention", config);
    large_values(7).fill(rank.context, attention.parameters());
    round_values(rank, attention.parameters(), rounded_to);
    for (collectives::Parameter* p : attention.parameters()) zero_gradient(rank.context, *p);
    const Tensor y = rank.context.tensor(own, machine::Category::buffers);
    const Tensor d_x = rank.context.tensor(own, machine::Category::buffers);
    Attention::Saved saved;
    attention.forward(scatter(rank, x, shape, cut), y, saved, machine::Category::activations,
                      draw_of(config), config.encoder() ? options.lengths.data() : nullptr);
    attention.backward_input(scatter(rank, d_y, shape, cut), d_x, saved,
                             machine::Category::buffers);
    attention.backward_weights(saved);
    Observed seen;
    seen["y"] = gather(rank, y, shape, cut);
    seen["d_x"] = gather(rank, d_x, shape, cut);
    for (collectives::Parameter* p : attention.parameters())
      seen[p->name] = gather(rank, *p, p->value);
    observe_gradients(rank, attention.parameters(), seen);
    return seen;
  });
}

TEST(Attention, MatchesTheReference) {
  for (const GptConfig& shape : shapes) {
    for (const int tp : {1, 2, 4}) {
      for (const int sequences : {1, 2}) {
        const auto x = random_values(std::int64_t{sequences} * shape.sequence * shape.hidden, 1,
                                     Dtype::float64);
        for (const bool blockwise : {false, true}) {
          const Observed seen =
              run(shape, tp, Dtype::float64, sequences, Dtype::float64, {.blockwise = blockwise});
          EXPECT_LE(relative_error(seen.at("y"),
                                   reference::attention(
                                       x, seen, "attention", shape, draw_of(shape),
                                       shape.encoder() ? lengths : std::vector<std::int32_t>())),
                    norm_bound_from_double(Dtype::float64, 1, shape.hidden))
              << "tp " << tp << ", sequences " << sequences << (blockwise ? ", blockwise" : "")
              << (shape.rotary() ? ", llama" : "") << (shape.encoder() ? ", bert" : "")
              << (shape.attention_dropout > 0 ? ", dropping" : "");
        }
      }
    }
  }
}

class AttentionTypes : public ::testing::TestWithParam<Dtype> {};

TEST_P(AttentionTypes, EveryDegreeIsNearDouble) {
  for (const GptConfig& shape : shapes) {
    const double bound = norm_bound_from_double(GetParam(), 1, shape.hidden);
    for (const int sequences : {1, 2}) {
      const Observed exact = run(shape, 1, Dtype::float64, sequences, GetParam());
      for (const int tp : {1, 2, 4}) {
        SCOPED_TRACE("tp " + std::to_string(tp));
        expect_within(run(shape, tp, GetParam(), sequences, GetParam()), exact, bound);
      }
      if (sequences == 2)  // 18 rows, one sequence per rank
        expect_within(run(shape, 2, GetParam(), sequences, GetParam(), {.sequence_parallel = true}),
                      exact, bound);
    }
  }
}

TEST_P(AttentionTypes, BlockwiseMatchesPlainInDouble) {
  for (const GptConfig& shape : shapes) {
    const Observed exact = run(shape, 1, Dtype::float64, 2, GetParam());
    for (const int tp : {1, 2, 4}) {
      SCOPED_TRACE("tp " + std::to_string(tp));
      expect_within(run(shape, tp, GetParam(), 2, GetParam(),
                        {.sequence_parallel = tp == 2, .blockwise = true}),
                    exact, norm_bound_from_double(GetParam(), 1, shape.hidden));
    }
  }
}

// Recomputed probabilities give the same bits.
TEST_P(AttentionTypes, RecomputingTheCoreChangesNothing) {
  for (const GptConfig& shape : shapes)
    for (const int tp : {1, 2})
      EXPECT_EQ(run(shape, tp, GetParam(), 2, GetParam(),
                    {.sequence_parallel = tp > 1, .recompute = true}),
                run(shape, tp, GetParam(), 2, GetParam(), {.sequence_parallel = tp > 1}));
}

// Heads have different blocks of keys. A padded sequence sees the first block only.
TEST(Attention, SparseMatchesTheReference) {
  for (GptConfig shape : {config, llamas, dropping(), bert(dropping_heads())}) {
    shape.sequence = 64;
    shape.sparse = {.pattern = {.mode = SparseMode::variable,
                                .different_layout_per_head = true,
                                .num_random_blocks = 1,
                                .local_window_blocks = {1}}};
    const SparseLayout layout = sparse_layout(shape.sparse_options().pattern, shape.heads, 4);
    const auto sees = [&](std::size_t head, std::size_t query, std::size_t key) {
      return layout.at(static_cast<int>(head), static_cast<int>(query / 16),
                       static_cast<int>(key / 16));
    };
    const auto x = random_values(2 * std::int64_t{64} * shape.hidden, 1, Dtype::float64);
    const double bound = norm_bound_from_double(Dtype::float64, 1, shape.hidden);
    const auto run_at = [&](int tp, bool recompute) {
      return run(shape, tp, Dtype::float64, 2, Dtype::float64,
                 {tp == 4, recompute, true, sparse_lengths});
    };
    const Observed alone = run_at(1, false);
    for (const int tp : {1, 2, 4}) {
      SCOPED_TRACE("tp " + std::to_string(tp));
      const Observed seen = run_at(tp, false);
      const auto want = reference::attention(
          x, seen, "attention", shape, draw_of(shape),
          shape.encoder() ? sparse_lengths : std::vector<std::int32_t>(), sees);
      EXPECT_LE(relative_error(seen.at("y"), want), bound);
      expect_within(seen, alone, bound);
      EXPECT_EQ(run_at(tp, true), seen);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, AttentionTypes, ::testing::ValuesIn(machine::floating_dtypes),
                         [](const auto& info) { return std::string(name(info.param)); });

}  // namespace
}  // namespace layers::testing

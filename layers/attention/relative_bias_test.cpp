// The buckets of T5's relative positions, and the bias of scores with its gradient.

#include "layers/attention/relative_bias.h"

#include "layers/testing/sharded_case.h"

namespace layers::testing {
namespace {

using machine::Dtype;
using machine::Tensor;

// Computed by hand from the paper's text: 16 + 16 log8(d/16) behind a decoder's query, 8 + 8
// log16(d/8) on either side of an encoder's.
TEST(RelativeBias, BucketsAreThoseOfThePaper) {
  for (const auto& [offset, decoder, encoder] : {std::tuple(0, 0, 0),
                                                 {-1, 1, 1},
                                                 {-7, 7, 7},
                                                 {-8, 8, 8},
                                                 {-15, 15, 9},
                                                 {-16, 16, 10},
                                                 {-20, 17, 10},
                                                 {-64, 26, 14},
                                                 {-127, 31, 15},
                                                 {-128, 31, 15},
                                                 {-5000, 31, 15},
                                                 {1, 0, 17},
                                                 {8, 0, 24},
                                                 {300, 0, 31}}) {
    EXPECT_EQ(relative_bucket(offset, true), decoder) << offset;
    EXPECT_EQ(relative_bucket(offset, false), encoder) << offset;
  }
}

// Two heads and two sequences of three positions, all with different numbers.
TEST(RelativeBias, AddsToScoresAndSumsTheirGradients) {
  on_ranks(1, Dtype::float64, [&](Rank& rank) {
    constexpr std::int64_t positions = 3, heads = 2, sequences = 2;
    std::vector<std::int32_t> buckets(positions * positions);
    relative_buckets(positions, false, buckets);
    const machine::Shape table_shape{heads, relative_buckets_count},
        score_shape{sequences * heads, positions, positions};
    const auto table = random_values(table_shape.size(), 1, Dtype::float64),
               before = random_values(score_shape.size(), 2, Dtype::float64),
               kept = random_values(table_shape.size(), 3, Dtype::float64);
    const Tensor scores = scatter(rank, before, score_shape),
                 d_table = scatter(rank, kept, table_shape);
    const RelativeBias bias{scatter(rank, table, table_shape), buckets.data()};
    add_relative_bias(rank.context, bias, scores);
    add_relative_bias_gradient(rank.context, bias, scatter(rank, before, score_shape), d_table);
    std::vector<double> want_scores = before, want_table = kept;
    for (std::size_t i = 0; i < before.size(); ++i) {
      const std::size_t head = i / (positions * positions) % heads;
      const auto bucket = static_cast<std::size_t>(buckets[i % (positions * positions)]);
      want_scores[i] += table[head * relative_buckets_count + bucket];
      want_table[head * relative_buckets_count + bucket] += before[i];
    }
    EXPECT_LE(relative_error(machine::to_doubles(scores), want_scores), 1e-15);
    EXPECT_LE(relative_error(machine::to_doubles(d_table), want_table), 1e-15);
  });
}

}  // namespace
}  // namespace layers::testing

// The placements and the parts of the mask, compared with loops over all positions.

#include "layers/context_parallel/splits/placement.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "layers/context_parallel/splits/head_split.h"

namespace layers {
namespace {

// Calls check(placement) for all orders, few ranks, and lengths that the degree does not divide.
template <class Check>
void each_placement(const Check& check) {
  for (const SequenceOrder order : all_orders)
    for (const int ranks : {1, 2, 3, 4, 5})
      for (const std::int64_t sequence : {1, 2, 3, 7, 8, 9, 16, 24, 25, 40}) {
        SCOPED_TRACE(fmt::format("{} ranks {} sequence {}", name(order), ranks, sequence));
        check(SequencePlacement{order, sequence, ranks});
      }
}

TEST(Placement, HoldsEveryPositionOnceInAscendingOrder) {
  each_placement([](const SequencePlacement& placement) {
    std::set<std::int64_t> held;
    std::int64_t most = 0, least = placement.sequence;
    for (int rank = 0; rank < placement.ranks; ++rank) {
      const std::int64_t rows = placement.rows(rank);
      most = std::max(most, rows);
      least = std::min(least, rows);
      std::int64_t before = -1;
      for (std::int64_t row = 0; row < rows; ++row) {
        const std::int64_t position = placement.position(rank, row);
        EXPECT_GT(position, before);
        EXPECT_TRUE(held.insert(position).second) << position;
        EXPECT_EQ(placement.place(position), (RankRow{rank, row}));
        before = position;
      }
    }
    EXPECT_EQ(held.size(), static_cast<std::size_t>(placement.sequence));
    EXPECT_EQ(*held.rbegin(), placement.sequence - 1);
    EXPECT_EQ(placement.most_rows(), most);
    EXPECT_LE(most - least, placement.order == SequenceOrder::zigzag ? 2 : 1);
  });
}

TEST(Placement, InnerRanksSplitTheRowsOfAnOuterRank) {
  each_placement([](const SequencePlacement& outer) {
    for (const int inner : {2, 3}) {
      const SequencePlacement placement{outer.order, outer.sequence, outer.ranks * inner, inner};
      for (int rank = 0; rank < outer.ranks; ++rank) {
        std::vector<std::int64_t> mine, theirs;
        for (std::int64_t row = 0; row < outer.rows(rank); ++row)
          theirs.push_back(outer.position(rank, row));
        for (int of = rank * inner; of < (rank + 1) * inner; ++of)
          for (std::int64_t row = 0; row < placement.rows(of); ++row)
            mine.push_back(placement.position(of, row));
        EXPECT_EQ(mine, theirs);
      }
    }
  });
}

TEST(Placement, OrdersAreThoseOfThePapers) {
  const auto positions = [](SequenceOrder order, int rank) {
    std::vector<std::int64_t> all;
    const SequencePlacement placement{order, 8, 2};
    for (std::int64_t row = 0; row < placement.rows(rank); ++row)
      all.push_back(placement.position(rank, row));
    return all;
  };
  using Positions = std::vector<std::int64_t>;
  EXPECT_EQ(positions(SequenceOrder::contiguous, 1), (Positions{4, 5, 6, 7}));
  EXPECT_EQ(positions(SequenceOrder::striped, 1), (Positions{1, 3, 5, 7}));
  EXPECT_EQ(positions(SequenceOrder::zigzag, 0), (Positions{0, 1, 6, 7}));
  EXPECT_EQ(positions(SequenceOrder::zigzag, 1), (Positions{2, 3, 4, 5}));
}

TEST(Placement, TilesAreTheMask) {
  each_placement([](const SequencePlacement& placement) {
    for (const bool causal : {false, true})
      for (int a = 0; a < placement.ranks; ++a) {
        std::int64_t pairs = 0;
        for (int b = 0; b < placement.ranks; ++b) {
          const std::optional<Tile> tile = placement.tile(a, b, causal);
          for (std::int64_t i = 0; i < placement.rows(a); ++i)
            for (std::int64_t j = 0; j < placement.rows(b); ++j) {
              const bool sees = !causal || placement.position(b, j) <= placement.position(a, i);
              const std::int64_t row = tile ? i - tile->query : -1, key = tile ? j - tile->key : -1;
              const bool inside =
                  tile && row >= 0 && row < tile->queries && key >= 0 && key < tile->keys;
              EXPECT_EQ(inside && (!tile->causal || key <= row), sees)
                  << "query " << i << " of rank " << a << ", key " << j << " of rank " << b;
              pairs += sees;
            }
        }
        EXPECT_EQ(placement.pairs(a, causal), pairs) << "rank " << a;
      }
  });
}

// With n = sequence / ranks rows of each rank, r of P ranks (Brandon et al. 2023, section 3).
TEST(Placement, CausalWorkHasItsClosedForm) {
  for (const std::int64_t P : {1, 2, 4, 8}) {
    const std::int64_t n = 6, c = n / 2;
    const auto pairs = [&](SequenceOrder order, std::int64_t r) {
      return SequencePlacement{order, n * P, static_cast<int>(P)}.pairs(static_cast<int>(r), true);
    };
    for (std::int64_t r = 0; r < P; ++r) {
      EXPECT_EQ(pairs(SequenceOrder::contiguous, r), n * n * r + n * (n + 1) / 2);
      EXPECT_EQ(pairs(SequenceOrder::striped, r), n * (r + 1) + P * n * (n - 1) / 2);
      EXPECT_EQ(pairs(SequenceOrder::zigzag, r), c * c * (2 * P - 1) + c * (c + 1));  // no r
    }
  }
}

// A round of the ring takes as long as its busiest rank. Zigzag: all ranks have equal work in every
// round. Contiguous: the last rank has a full block in every round.
TEST(Placement, ZigzagAndStripesBalanceEveryRound) {
  const int P = 8;
  const std::int64_t n = 32;
  const auto busiest = [&](SequenceOrder order) {
    const SequencePlacement placement{order, n * P, P};
    std::int64_t sum = 0;
    for (int round = 0; round < P; ++round) {
      std::int64_t most = 0;
      for (int rank = 0; rank < P; ++rank)
        if (const auto tile = placement.tile(rank, (rank - round + P) % P, true))
          most = std::max(most, tile->pairs());
      sum += most;
    }
    return sum;
  };
  const std::int64_t all = n * P * (n * P + 1) / 2;
  EXPECT_EQ(busiest(SequenceOrder::zigzag) * P, all);
  EXPECT_LE(static_cast<double>(busiest(SequenceOrder::striped) * P),
            1.04 * static_cast<double>(all));
  EXPECT_EQ(busiest(SequenceOrder::contiguous), n * (n + 1) / 2 + (P - 1) * n * n);
}

TEST(HeadSplit, IsThatOfItsExample) {
  const HeadSplit split{6, 2, 4};
  using collectives::ChunkRange;
  const ChunkRange queries[] = {{0, 2}, {2, 4}, {4, 5}, {5, 6}},
                   keys[] = {{0, 1}, {0, 2}, {1, 2}, {1, 2}};
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(split.queries(rank), queries[rank]) << rank;
    EXPECT_EQ(split.keys(rank), keys[rank]) << rank;
  }
  EXPECT_EQ(split.calls(1), (std::vector<HeadSplit::Call>{{0, 1, 0, 1}, {1, 1, 1, 1}}));
  EXPECT_EQ(split.layers(), (std::vector<int>{0, 1, 0, 2}));
}

TEST(HeadSplit, CallsCoverHeadsAndLayersShareNone) {
  for (const std::int64_t heads : {4, 6, 8, 12})
    for (const std::int64_t kv_heads : {1, 2, 3, 4, 6, 12})
      for (const int ranks : {1, 2, 3, 4}) {
        if (heads % kv_heads != 0) continue;
        SCOPED_TRACE(fmt::format("heads {} kv_heads {} ranks {}", heads, kv_heads, ranks));
        const HeadSplit split{heads, kv_heads, ranks};
        std::set<std::int64_t> seen;
        std::set<std::pair<int, std::int64_t>> of_layers;
        for (int rank = 0; rank < ranks; ++rank) {
          for (const HeadSplit::Call& call : split.calls(rank))
            for (std::int64_t i = 0; i < call.queries; ++i) {
              const std::int64_t head = split.queries(rank).begin + call.query + i;
              EXPECT_TRUE(seen.insert(head).second) << head;
              // A kernel's rule for heads that share keys.
              EXPECT_EQ(split.keys(rank).begin + call.key + i / (call.queries / call.keys),
                        head * kv_heads / heads);
            }
          for (std::int64_t key = split.keys(rank).begin; key < split.keys(rank).end; ++key)
            EXPECT_TRUE(
                of_layers.insert({split.layers()[static_cast<std::size_t>(rank)], key}).second);
        }
        EXPECT_EQ(seen.size(), static_cast<std::size_t>(heads));
      }
}

}  // namespace
}  // namespace layers

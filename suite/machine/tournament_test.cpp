#include "suite/machine/tournament.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

namespace suite {
namespace {

TEST(Tournament, EveryPairMeetsOnceAndNoRankTwiceInARound) {
  for (int ranks = 2; ranks <= 65; ++ranks) {
    const std::vector<Round> rounds = tournament(ranks);
    EXPECT_EQ(rounds.size(), static_cast<std::size_t>(ranks - 1 + ranks % 2)) << ranks;
    std::map<std::pair<int, int>, int> met;
    for (const Round& round : rounds) {
      EXPECT_EQ(round.size(), static_cast<std::size_t>(ranks / 2)) << ranks;
      std::set<int> busy;
      for (const Pair& pair : round) {
        EXPECT_LE(0, pair.low);
        EXPECT_LT(pair.low, pair.high);
        EXPECT_LT(pair.high, ranks);
        EXPECT_TRUE(busy.insert(pair.low).second) << pair.low << " of " << ranks;
        EXPECT_TRUE(busy.insert(pair.high).second) << pair.high << " of " << ranks;
        ++met[{pair.low, pair.high}];
      }
    }
    EXPECT_EQ(met.size(), static_cast<std::size_t>(ranks * (ranks - 1) / 2)) << ranks;
    for (const auto& [pair, times] : met)
      EXPECT_EQ(times, 1) << pair.first << " and " << pair.second << " of " << ranks;
  }
}

// The circle method: rank 3 is fixed, ranks 0, 1 and 2 rotate.
TEST(Tournament, FourRanks) {
  EXPECT_EQ(tournament(4),
            (std::vector<Round>{{{0, 3}, {1, 2}}, {{1, 3}, {0, 2}}, {{2, 3}, {0, 1}}}));
}

TEST(Tournament, OneRankHasNoRound) { EXPECT_TRUE(tournament(1).empty()); }

TEST(Tournament, OneAtATimeKeepsThePairsAndTheirOrder) {
  const std::vector<Round> single = one_at_a_time(tournament(5));
  ASSERT_EQ(single.size(), 10u);
  std::size_t at = 0;
  for (const Round& round : tournament(5))
    for (const Pair& pair : round) EXPECT_EQ(single[at++], Round{pair});
}

TEST(Tournament, ARankFindsItsPeer) {
  const Round round{{0, 3}, {1, 4}};
  EXPECT_EQ(peer_in(round, 0), 3);
  EXPECT_EQ(peer_in(round, 4), 1);
  EXPECT_EQ(peer_in(round, 2), -1);
}

}  // namespace
}  // namespace suite

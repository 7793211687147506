// The table of algorithms in collectives/README.md.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>

#include "collectives/plan.h"
#include "machine/testing/generated_section.h"

namespace collectives {
namespace {

// "7/4 n": elements as a multiple of `count`.
std::string multiple(std::int64_t elements, std::int64_t count) {
  if (elements == 0) return "0";
  const std::int64_t divisor = std::gcd(elements, count);
  const std::int64_t over = elements / divisor, under = count / divisor;
  const std::string n = over == 1 ? "n" : fmt::format("{}n", over);
  return under == 1 ? n : fmt::format("{}/{}", n, under);
}

std::string table() {
  constexpr int ranks = 8;
  std::string rows =
      "| operation | algorithm | bytes | messages | source |\n"
      "|---|---|---|---|---|\n";
  for (const Algorithm& algorithm : algorithms()) {
    // n is the whole buffer. It has 8 equal shares if the operation works on shares.
    const bool shares = deals_in_shares(algorithm.operation);
    const std::int64_t whole = ranks * 840, count = shares ? whole / ranks : whole;
    if (algorithm.operation == machine::Operation::all_to_all_v) {
      rows += fmt::format("| {} | `{}` | by traffic | 7 | {} |\n",
                          machine::name(algorithm.operation), algorithm.name, algorithm.source);
      continue;
    }
    Volume most;
    for (int rank = 0; rank < ranks; ++rank) {
      const Volume volume = algorithm.volume({.rank = rank, .ranks = ranks, .inner = 4}, count);
      most.sent = std::max(most.sent, volume.sent);
      most.messages_sent = std::max(most.messages_sent, volume.messages_sent);
    }
    rows += fmt::format("| {} | `{}` | {} | {} | {} |\n", machine::name(algorithm.operation),
                        algorithm.name, multiple(most.sent, whole), most.messages_sent,
                        algorithm.source);
  }
  return rows;
}

TEST(Readme, TableOfAlgorithmsMatchesTheCode) {
  machine::testing::expect_generated_section(SHARDMARK_ROOM_README, "algorithms", table());
}

TEST(Readme, PlanMatchesTheRing) {
  const Plan plan =
      find_algorithm(machine::Operation::all_reduce, "ring").plan({.rank = 0, .ranks = 2});
  machine::testing::expect_generated_section(SHARDMARK_ROOM_README, "ring",
                                             "```\n" + text(plan) + "\n```\n");
}

}  // namespace
}  // namespace collectives

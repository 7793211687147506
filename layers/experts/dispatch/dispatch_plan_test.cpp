// The groups of expert parallelism, and the moves of tokens as data.

#include "layers/experts/dispatch/dispatch_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>

namespace layers {
namespace {

using Numbers = std::vector<int>;

machine::Group all_of(int ranks, int rank) { return machine::first_ranks("all", ranks, rank); }

TEST(ExpertGroups, AreDrawnAsInTheHeader) {
  const ExpertGroups groups = expert_groups(all_of(8, 6), {.ep = 2, .etp = 2});
  EXPECT_EQ(groups.experts.members, (Numbers{4, 5, 6, 7}));
  EXPECT_EQ(groups.experts.index, 2);
  EXPECT_EQ(groups.etp.members, (Numbers{6, 7}));
  EXPECT_EQ(groups.etp.index, 0);
  EXPECT_EQ(groups.edp.members, (Numbers{2, 6}));
  EXPECT_EQ(groups.edp.index, 1);
  EXPECT_THROW(expert_groups(all_of(6, 0), {.ep = 4}), std::invalid_argument);
}

MoeConfig config_of(double capacity, bool pads) {
  MoeConfig config;
  config.num_experts = 6;
  config.topk = 2;
  config.expert_capacity_factor = capacity;
  config.pad_expert_input_to_capacity = pads;
  return config;
}

// Random routing of each rank's tokens.
std::vector<Routing> routings(const MoeConfig& config, int ranks, std::int64_t tokens) {
  std::mt19937 generator(5);
  std::normal_distribution<double> normal(0, 1);
  std::vector<Routing> all;
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<double> logits;
    for (std::int64_t i = 0; i < tokens * config.num_experts; ++i)
      logits.push_back(normal(generator) - 0.4 * static_cast<double>(i % config.num_experts));
    all.push_back(route(config, logits));
  }
  return all;
}

// Follows every row from its sender to the expert. Each kept choice arrives once at each rank that
// holds a part of its expert, in the order of experts, senders and tokens.
TEST(DispatchPlan, EveryKeptChoiceArrivesOnce) {
  for (const ExpertParallel degrees : {ExpertParallel{1, 1}, {3, 1}, {2, 1}, {3, 2}, {1, 2}})
    for (const double capacity : {0.0, 0.7})
      for (const bool pads : {false, true}) {
        if (pads && capacity == 0) continue;
        const MoeConfig config = config_of(capacity, pads);
        const int ranks = degrees.ranks(), each = config.num_experts / degrees.ep;
        const std::vector<Routing> routing = routings(config, ranks, 10);
        std::vector<std::int32_t> counts, choices;
        for (const Routing& one : routing) {
          const auto rows = rows_of_experts(config, one);
          counts.insert(counts.end(), rows.begin(), rows.end());
          choices.insert(choices.end(), one.choices.begin(), one.choices.end());
        }
        std::vector<AllToAllPlan> plans;
        for (int rank = 0; rank < ranks; ++rank)
          plans.push_back(all_to_all_plan(config, degrees, rank,
                                          routing[static_cast<std::size_t>(rank)], counts));
        for (int rank = 0; rank < ranks; ++rank) {
          const AllToAllPlan& plan = plans[static_cast<std::size_t>(rank)];
          // Rows received by an all-to-all of these parts: (sender, slot).
          std::vector<std::pair<int, std::int32_t>> received;
          for (int from = 0; from < ranks; ++from) {
            const AllToAllPlan& sender = plans[static_cast<std::size_t>(from)];
            const auto part = [&](int to) {
              return sender.to_experts[static_cast<std::size_t>(from * ranks + to)];
            };
            std::int64_t begin = 0;
            for (int to = 0; to < rank; ++to) begin += part(to);
            for (std::int64_t row = begin; row < begin + part(rank); ++row)
              received.emplace_back(from, sender.sent.slot[static_cast<std::size_t>(row)]);
          }
          ASSERT_EQ(received.size(), plan.arranged.size());
          std::size_t row = 0;
          const AllGatherPlan gathered = all_gather_plan(config, degrees, rank, choices);
          EXPECT_EQ(gathered.rows, plan.rows);
          for (int i = 0; i < each; ++i) {
            const int expert = rank / degrees.etp * each + i;
            std::vector<std::pair<int, std::int32_t>> want;
            for (int from = 0; from < ranks; ++from) {
              std::int64_t rows = 0;
              for (std::int32_t slot = 0; slot < 20; ++slot)
                if (routing[static_cast<std::size_t>(from)]
                        .choices[static_cast<std::size_t>(slot)] == expert) {
                  want.emplace_back(from, slot);
                  ++rows;
                }
              for (; pads && rows < config.capacity(10); ++rows) want.emplace_back(from, -1);
            }
            ASSERT_EQ(plan.rows[static_cast<std::size_t>(i)], std::ssize(want));
            for (const auto& [from, slot] : want) {
              const auto place = static_cast<std::size_t>(plan.arranged[row]);
              EXPECT_EQ(received[place], std::pair(from, slot));
              EXPECT_EQ(plan.received[place], static_cast<std::int32_t>(row));
              EXPECT_EQ(gathered.held.slot[row], slot < 0 ? -1 : from * 20 + slot);
              EXPECT_EQ(gathered.held.token[row], slot < 0 ? -1 : from * 10 + slot / 2);
              ++row;
            }
          }
          EXPECT_EQ(row, plan.arranged.size());
          // The runs lead every received row to its place.
          std::vector<int> reached(received.size());
          std::int64_t begin = 0;
          for (int from = 0; from < ranks; ++from) {
            for (const ExpertRun& run : expert_runs(config, degrees, from, rank, counts)) {
              EXPECT_GT(run.rows, 0);
              for (std::int64_t i = 0; i < run.rows; ++i) {
                const auto at = static_cast<std::size_t>(begin + run.packed + i);
                EXPECT_EQ(plan.received[at], run.place + i);
                ++reached[at];
              }
            }
            begin += plans[static_cast<std::size_t>(from)]
                         .to_experts[static_cast<std::size_t>(from * ranks + rank)];
          }
          EXPECT_EQ(std::ranges::count(reached, 1), std::ssize(reached));
        }
      }
}

}  // namespace
}  // namespace layers

#include "pipeline/prove.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "pipeline/messages.h"
#include "pipeline/partition.h"

namespace pipeline {
namespace {

// Sanitizers slow the proofs down twentyfold, so sanitized builds prove fewer stages.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int most_stages = 12;
#else
constexpr int most_stages = 32;
#endif

// Numbers of rejected sizes, proved sizes, and sizes without a formula in the paper. They show that
// no size is skipped silently.
struct Counts {
  int refused = 0, proved = 0, without_formula = 0;
  bool operator==(const Counts&) const = default;
};

Counts prove_all(const Schedule& schedule) {
  Counts counts;
  for (int stages = 1; stages <= most_stages; ++stages) {
    for (int chunks = 1; chunks <= 4; ++chunks) {
      if (!schedule.any_chunks && chunks != schedule.chunks) continue;
      for (int micro_batches = 1; micro_batches <= 4 * stages; ++micro_batches) {
        const Size size{stages, micro_batches, chunks};
        if (!schedule.why_not(size).empty()) {
          ++counts.refused;
          continue;
        }
        const Proof proof = prove(schedule, size);
        EXPECT_TRUE(proof) << proof.fault;
        if (!proof) return counts;
        ++counts.proved;
        for (const std::string& what : proof.unclaimed)
          counts.without_formula += what.find("needs m") != std::string::npos;
      }
    }
  }
  return counts;
}

TEST(Prove, EveryListedScheduleUpTo32Stages) {
  // The number of sizes, with 4p sizes for p stages.
  const int p = most_stages, all = 2 * p * (p + 1);
  for (const Schedule& schedule : schedules()) {
    SCOPED_TRACE(schedule.name);
    Counts expected{0, all, 0};
    if (schedule.name == "interleaved_1f1b")  // p, 2p, 3p and 4p micro-batches, with 1 to 4 chunks
      expected = {4 * (all - 4 * p), 4 * 4 * p, 0};
    if (schedule.name == "zb_h1") expected.without_formula = p * (p - 1) / 2;  // 1 … p-1
    if (schedule.name == "zb_h2" || schedule.name == "zb_v")                   // 1 … 2p-2
      expected.without_formula = p * (p - 1);
    if (schedule.name == "dual_pipe") {  // even p only: 2p, 2p+2 … 4p
      const int legal = (p / 2) * (p / 2 + 1) + p / 2;
      expected = {all - legal, legal, 0};
    }
    EXPECT_EQ(prove_all(schedule), expected);
  }
}

TEST(Prove, BubbleMatchesThePapersInBothNormalisations) {
  for (const char* name : {"gpipe", "1f1b"}) {
    for (int stages : {1, 2, 4, 8}) {
      for (int micro_batches : {1, 3, 8, 32}) {
        const Simulation simulation =
            simulate(find_schedule(name), {stages, micro_batches}, {2, 3, 1});
        for (int stage = 0; stage < stages; ++stage) {
          const Bubble bubble = simulation.bubble(stage);
          EXPECT_EQ(bubble.idle_s, (stages - 1) * 6);
          EXPECT_DOUBLE_EQ(bubble.of_ideal, double(stages - 1) / micro_batches);
          EXPECT_DOUBLE_EQ(bubble.of_total, double(stages - 1) / (micro_batches + stages - 1));
        }
      }
    }
  }
}

// Idle time in units of F = I = W of a whole stage, as in the papers' tables. p is 8, m is 32.
TEST(Prove, BubblesOfTheZeroBubblePapers) {
  const auto idle = [](const char* name, int chunks) {
    const double part = 1.0 / chunks;
    return simulate(find_schedule(name), {8, 32, chunks}, {part, part, part}).bubble(0).idle_s;
  };
  EXPECT_DOUBLE_EQ(idle("1f1b", 1), 7 * 3);
  EXPECT_DOUBLE_EQ(idle("interleaved_1f1b", 2), 7 * 3 / 2.0);
  EXPECT_DOUBLE_EQ(idle("zb_h1", 1), 7);
  EXPECT_DOUBLE_EQ(idle("zb_h2", 1), 0);
  EXPECT_DOUBLE_EQ(idle("zb_v", 2), 0);
}

StageSchedules good() { return all_stages(find_schedule("1f1b"), 3, 3); }

void expect_refused(const StageSchedules& schedules, const std::string& cell,
                    const std::string& what) {
  const Proof proof = prove(schedules, 3);
  ASSERT_FALSE(proof) << draw(schedules);
  EXPECT_NE(proof.fault.find(cell), std::string::npos) << proof.fault;
  EXPECT_NE(proof.fault.find(what), std::string::npos) << proof.fault;
}

TEST(Prove, RejectsBackwardBeforeForward) {
  StageSchedules bad = good();
  ASSERT_TRUE(prove(bad, 3));
  bad[2] = parse("B0 F0 F1 B1 F2 B2");
  expect_refused(bad, "stage  2 |>B0<", "B0 comes before F0");
}

TEST(Prove, RejectsASwapOnOneStage) {
  StageSchedules bad = good();
  std::swap(bad[1][0], bad[1][1]);  // F1 before F0, while stage 0 sends F0 first
  expect_refused(bad, "stage  1 |>F1<",
                 "receives the activation of micro-batch 1 for part 1 from stage 0, which sent "
                 "the activation of micro-batch 0");
}

TEST(Prove, RejectsMissingAndRepeatedMicroBatches) {
  StageSchedules bad = good();
  bad[0].pop_back();
  expect_refused(bad, ">?<", "backward of micro-batch 2 is missing");
  bad = good();
  bad[0].push_back(backward(2));
  expect_refused(bad, ">B2<", "B2 runs a second time");
  bad = good();
  bad[1].push_back(forward(3));
  expect_refused(bad, ">F3<", "is not one of 3 micro-batches");
  bad = good();
  bad[2].back() = backward_input(2);
  expect_refused(bad, ">?<", "backward_weights of micro-batch 2 is missing");
  bad = good();
  bad[2].back() = backward(2, 1);
  expect_refused(bad, ">B2.1<", "B2.1 is not in one of 1 chunks");
}

TEST(Prove, RejectsADeadlock) {
  // Stage 0 waits for the first gradient. Stage 1 sends it only after stage 0's second activation.
  expect_refused(
      {parse("F0 B0 F1 B1 F2 B2"), parse("F0 F1 B0 F2 B1 B2"), parse("F0 B0 F1 B1 F2 B2")},
      "stage  0 | F0 >B0<", "deadlock, waiting: stage 0 at B0 for the gradient of micro-batch 0");
}

// All forwards of chunk 0, then of chunk 1, on two stages with two chunks. While stage 0 still
// sends chunk 0's activations, stage 1 returns them for chunk 1. Without the limit of the outbox,
// this order always completes. With two slots per direction, stage 0 can run five micro-batches
// ahead, but not six.
StageSchedule two_chunks(int micro_batches) {
  StageSchedule actions;
  for (int chunk : {0, 1}) {
    for (int m = 0; m < micro_batches; ++m) actions.push_back(forward(m, chunk));
  }
  for (int chunk : {1, 0}) {
    for (int m = 0; m < micro_batches; ++m) actions.push_back(backward(m, chunk));
  }
  return actions;
}

TEST(Prove, ChunksAndTheOutbox) {
  EXPECT_TRUE(prove({two_chunks(5), two_chunks(5)}, 5));
  const Proof proof = prove({two_chunks(6), two_chunks(6)}, 6);
  EXPECT_NE(proof.fault.find("stage 0 at F5 for stage 1 to receive an earlier message; stage 1 at "
                             "F2 for stage 0 to receive an earlier message"),
            std::string::npos)
      << proof.fault;
  EXPECT_TRUE(prove({two_chunks(2)}, 2));  // one stage sends no messages
}

TEST(Prove, RejectsUnclaimedPeaksAndTimes) {
  Schedule wrong = find_schedule("gpipe");
  wrong.peak = find_schedule("1f1b").peak;
  EXPECT_NE(prove(wrong, {4, 8})
                .fault.find("8 micro-batches are live at once on stage 0; the paper claims 4"),
            std::string::npos);
  wrong = find_schedule("1f1b");
  wrong.span = [](const Size& size, const Costs& costs) {
    return Formula{size.micro_batches * (costs.forward + costs.backward())};
  };
  EXPECT_NE(prove(wrong, {4, 8}).fault.find("a step takes 33; the paper claims 24"),
            std::string::npos)
      << prove(wrong, {4, 8}).fault;
}

// Swaps two actions in each schedule that has a split backward or several chunks.
TEST(Prove, RejectsASwapInEverySchedule) {
  const auto swapped = [](const char* name, const Size& size, int stage, std::size_t i) {
    StageSchedules actions = all_stages(find_schedule(name), size);
    EXPECT_TRUE(prove(actions, size.micro_batches)) << name;
    StageSchedule& mine = actions[static_cast<std::size_t>(stage)];
    std::swap(mine[i], mine[i + 1]);
    return prove(actions, size.micro_batches).fault;
  };
  const auto expect = [](const std::string& fault, const char* what) {
    EXPECT_NE(fault.find(what), std::string::npos) << fault;
  };
  expect(swapped("zb_h1", {3, 4}, 0, 3), "W0 comes before I0");
  expect(swapped("zb_h2", {3, 6}, 1, 0), "stage 0, which sent the activation of micro-batch 0");
  expect(swapped("interleaved_1f1b", {4, 4, 2}, 3, 3),
         "receives the activation of micro-batch 0 for part 7 from stage 2, which sent the "
         "activation of micro-batch 3");
  expect(swapped("zb_v", {2, 3, 2}, 1, 0),
         "F0.1 for the activation of micro-batch 0 for part 2 from stage 1");
  expect(swapped("dual_pipe", {2, 4, 2}, 0, 7), "W1 comes before I1");
  // A micro-batch of the other copy.
  StageSchedules actions = all_stages(find_schedule("dual_pipe"), 2, 4);
  actions[0][0] = forward(2);
  expect(prove(actions, 4).fault, "F2 is of copy 1 of the model");
}

// Zero-bubble schedules (Qi et al. 2024, arXiv:2401.10241) send the gradient of the input before
// they compute the gradient of the weights. 1F1B with a split backward takes less time, and keeps
// incoming gradients until W.
TEST(Prove, SplitBackwardShortensTheBubble) {
  const StageSchedules halves = {parse("F0 F1 I0 W0 F2 I1 W1 I2 W2"),
                                 parse("F0 I0 F1 I1 W0 F2 I2 W1 W2")};
  ASSERT_TRUE(prove(halves, 3)) << prove(halves, 3).fault;
  const std::vector<Costs> costs(2, Costs{1, 1, 1});
  const double parted = simulate(halves, costs).makespan_s;
  const double whole = simulate(find_schedule("1f1b"), {2, 3}, {1, 1, 1}).makespan_s;
  EXPECT_LT(parted, whole);
}

TEST(Schedules, UnknownNameSuggestsTheNearest) {
  try {
    find_schedule("g-pipe");
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(), "unknown pipeline schedule 'g-pipe'; did you mean 'gpipe'?");
  }
  EXPECT_THROW(all_stages(find_schedule("gpipe"), 0, 4), std::invalid_argument);
  EXPECT_EQ(
      find_schedule("zb_v").why_not({4, 8, 1}),
      "schedule zb_v with 4 stages, 8 micro-batches and 1 chunks per stage requires 2 chunks");
  EXPECT_EQ(
      find_schedule("interleaved_1f1b").why_not({4, 6, 2}),
      "schedule interleaved_1f1b with 4 stages, 6 micro-batches and 2 chunks per stage requires "
      "m % p == 0");
  EXPECT_NE(find_schedule("dual_pipe").why_not({3, 6, 2}), "");
  EXPECT_THROW(parse("F0 X1"), std::invalid_argument);
  EXPECT_THROW(parse("F"), std::invalid_argument);
  EXPECT_THROW(parse("F0.x"), std::invalid_argument);
}

TEST(Placement, RejectsInvalidPlacements) {
  EXPECT_THROW(Placement({{{0, 0}, {0, 0}}}), std::invalid_argument);
  EXPECT_THROW(Placement({{{0, 0}, {1, 0}}, {{0, 1}}}), std::invalid_argument);
  EXPECT_THROW(Placement({{{0, 0}, {1, 1}}}), std::invalid_argument);
  EXPECT_THROW(StageSchedules({parse("F0 B0")}, looped(2, 1)), std::invalid_argument);
}

std::int64_t costliest(const std::vector<std::int64_t>& costs, const std::vector<int>& sizes) {
  std::int64_t most = 0;
  std::size_t at = 0;
  for (const int size : sizes) {
    EXPECT_GE(size, 1);
    std::int64_t cost = 0;
    for (int i = 0; i < size; ++i) cost += costs.at(at++);
    most = std::max(most, cost);
  }
  EXPECT_EQ(at, costs.size());
  return most;
}

// Returns the cost of the costliest part in the best of all divisions, by enumeration.
std::int64_t least_of_all(const std::vector<std::int64_t>& costs, std::size_t begin, int parts) {
  std::int64_t cost = 0, least = std::numeric_limits<std::int64_t>::max();
  for (std::size_t end = begin; end < costs.size(); ++end) {
    cost += costs[end];
    if (parts == 1 && end + 1 == costs.size()) least = std::min(least, cost);
    if (parts > 1 && end + 1 < costs.size())
      least = std::min(least, std::max(cost, least_of_all(costs, end + 1, parts - 1)));
  }
  return least;
}

// Every model of up to 6 layers with costs from 0 to 3, divided into every number of parts.
TEST(Partition, BalancedDivisionMinimizesTheCostliestPart) {
  int tried = 0;
  for (std::size_t layers = 1; layers <= 6; ++layers) {
    for (int code = 0; code < 1 << (2 * layers); ++code) {
      std::vector<std::int64_t> costs;
      for (std::size_t i = 0; i < layers; ++i) costs.push_back(code >> (2 * i) & 3);
      for (int parts = 1; parts <= static_cast<int>(layers); ++parts) {
        const std::vector<int> sizes = partition_balanced(costs, parts);
        ASSERT_EQ(sizes.size(), static_cast<std::size_t>(parts));
        ASSERT_EQ(costliest(costs, sizes), least_of_all(costs, 0, parts)) << code << " " << parts;
        ++tried;
      }
    }
  }
  EXPECT_EQ(tried, 30'948);
}

TEST(Partition, EqualLayersAreDividedUniformly) {
  for (int layers = 1; layers <= 24; ++layers)
    for (int parts = 1; parts <= layers; ++parts) {
      const std::vector<int> sizes = partition_uniform(layers, parts);
      EXPECT_EQ(partition_balanced(std::vector<std::int64_t>(layers, 7), parts), sizes);
      EXPECT_LE(sizes.front() - sizes.back(), 1);
    }
  EXPECT_THROW(partition_uniform(3, 4), std::invalid_argument);
  EXPECT_THROW(partition_balanced({1, 1}, 0), std::invalid_argument);
}

}  // namespace
}  // namespace pipeline

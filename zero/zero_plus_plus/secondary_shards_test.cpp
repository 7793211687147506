// hpZ: the bits, the bytes and the memory of secondary shards.

#include "zero/zero_plus_plus/secondary_shards.h"

#include <gtest/gtest.h>

#include <limits>
#include <stdexcept>

#include "zero/testing/plus_plus_model.h"

namespace zero {
namespace {

using machine::Category;
using machine::Dtype;
using machine::Operation;
using testing::PlusPlusModel;

StepOptions with_hosts(int size) {
  StepOptions options{.rule = AdamW{.learning_rate = 0.05}};
  options.plus_plus.hpz_partition_size = size;
  return options;
}

TEST(SecondaryShards, GroupsAreNeighboursOfDp) {
  const machine::Group group = secondary_group({"dp", {1, 3, 5, 7, 9, 11}, 4}, 2);
  EXPECT_EQ(group.members, (std::vector{9, 11}));
  EXPECT_EQ(group.index, 0);
  EXPECT_EQ(secondary_group({"dp", {1, 3, 5, 7, 9, 11}, 5}, 3).members, (std::vector{7, 9, 11}));
}

// Backward computes with the values of this step, not with those of the previous one, also after a
// step that was skipped and after values were loaded.
TEST(SecondaryShards, ChangeNoBit) {
  machine::run_ranks(4, [](machine::World& world) {
    const auto train = [&](StepOptions options) {
      const int hosts = options.plus_plus.hpz_partition_size;
      options.poison_freed = true;
      PlusPlusModel model(world, Dtype::bfloat16, options, hosts);
      std::vector<double> seen;
      for (const double scale : {1.0, 2.0, std::numeric_limits<double>::infinity(), 1.0}) {
        EXPECT_EQ(model.whole_step(2, scale).updated, scale < 3);
        const std::vector<double> values = model.values();
        seen.insert(seen.end(), values.begin(), values.end());
      }
      model.step->optimizer().visit(true, [](Range, const RangeStates& states) {
        for (const machine::Tensor& loaded : {states.values, states.master})
          loaded.device().stream().kernels().scale(loaded, 0.5, loaded);
      });
      model.step->values_loaded();
      model.whole_step(1);
      const std::vector<double> values = model.values();
      seen.insert(seen.end(), values.begin(), values.end());
      return seen;
    };
    const std::vector<double> plain = train(with_hosts(1));
    for (const int size : {2, 4}) {
      StepOptions options = with_hosts(size);
      EXPECT_EQ(train(options), plain) << size;
      options.overlap_comm = true;
      EXPECT_EQ(train(options), plain) << size << ", overlapped";
      options.stage3_prefetch_bucket_size = 0;
      options.stage3_max_reuse_distance = 500;
      EXPECT_EQ(train(options), plain) << size << ", without prefetching, some values stay";
    }
  });
}

// A rank sends (d-1)/d Psi E over dp for each of the m forwards, and (h-1)/h Psi E inside its group
// for each of the m backwards. The first part's gain is persistent, so it is in neither.
TEST(SecondaryShards, OnlyForwardGathersOverDp) {
  machine::run_ranks(4, [](machine::World& world) {
    constexpr std::uint64_t d = 4, h = 2, m = 3, width = 2;
    PlusPlusModel model(world, Dtype::bfloat16, with_hosts(h), h);
    model.whole_step(m);
    model.dp.link().reset_traffic();
    model.hpz->link().reset_traffic();
    model.whole_step(m);
    const auto sent = [](const collectives::Communicator& group) {
      return group.link().traffic().at({Operation::all_gather, Dtype::bfloat16}).bytes_sent;
    };
    const auto psi = static_cast<std::uint64_t>(model.gathered());
    const auto published = static_cast<std::uint64_t>(model.persistent());
    EXPECT_EQ(sent(model.dp), (d - 1) * (m * psi + published) / d * width);
    EXPECT_EQ(sent(*model.hpz), (h - 1) * m * psi / h * width);
    for (const auto& [label, traffic] : model.hpz->link().traffic())
      EXPECT_TRUE(traffic.bytes_sent == 0 || label.operation == Operation::all_gather);

    std::uint64_t over_dp = 0, in_group = 0;
    for (const CollectiveCalls& calls :
         expected_calls(3, model.plan, model.states->layout(), with_hosts(h), model.usage(m)))
      if (calls.what == "values")
        (calls.group == "hpz" ? in_group : over_dp) +=
            static_cast<std::uint64_t>(calls.calls * (calls.ranks - 1) * calls.count()) * width;
    EXPECT_EQ(over_dp, sent(model.dp));
    EXPECT_EQ(in_group, sent(*model.hpz));
  });
}

// The passes of a pipeline: a backward gathers inside the group only.
TEST(SecondaryShards, APassOfBackwardStaysInTheGroup) {
  machine::run_ranks(4, [](machine::World& world) {
    PlusPlusModel model(world, Dtype::bfloat16, with_hosts(2), 2);
    const Step::Part none;
    const auto pass = [&](bool backward) {
      model.step->begin_pass({.which = backward, .gradients = &none, .backward = backward});
      model.step->before_use(model.part(model.parts[1]));
      model.step->after_use(model.part(model.parts[1]));
      model.step->end_pass();
    };
    pass(false);
    model.dp.link().reset_traffic();
    pass(true);
    for (const auto& [label, traffic] : model.dp.link().traffic())
      EXPECT_EQ(traffic.bytes_sent, 0U);
    pass(false);
    EXPECT_GT(model.dp.link().traffic().at({Operation::all_gather, Dtype::bfloat16}).bytes_sent,
              0U);
    Usage forward{.uses = {model.parts[1]}, .gradients = std::vector<int>{}}, backward = forward;
    backward.backward = true;
    Passes passes;
    passes.kinds = {forward, backward};
    passes.order = {0, 1};
    const auto calls = expected_calls(3, model.plan, model.states->layout(), with_hosts(2), passes);
    std::int64_t in_group = 0, over_dp = 0;
    for (const CollectiveCalls& each : calls)
      if (each.what == "values")
        (each.group == "hpz" ? in_group : over_dp) += each.calls * each.elements;
    EXPECT_EQ(in_group + model.persistent(), over_dp);
  });
}

// Psi / h elements in addition to those of plain stage 3.
TEST(SecondaryShards, HoldAShareOfTheValues) {
  machine::run_ranks(4, [](machine::World& world) {
    const auto peak = [&](int size) {
      PlusPlusModel model(world, Dtype::bfloat16, with_hosts(size), size);
      model.whole_step(2);
      world.device().ledger().reset_peaks();
      model.whole_step(2);
      const std::size_t bytes = world.device().ledger().peak(Category::parameters);
      EXPECT_EQ(bytes, expected_memory(3, model.plan, model.states->layout(), AdamW{},
                                       with_hosts(size), model.usage(2))
                           .parameters);
      return std::pair(bytes, static_cast<std::size_t>(model.gathered()));
    };
    const auto [plain, psi] = peak(1);
    EXPECT_EQ(peak(2).first - plain, 2 * psi / 2);
    EXPECT_EQ(peak(4).first - plain, 2 * psi / 4);
  });
}

TEST(SecondaryShards, RefuseWhatTheyCannotShard) {
  const auto refusal = [](const PlusPlusCase& of, int size) {
    try {
      check({.hpz_partition_size = size}, of);
    } catch (const std::invalid_argument& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(refusal({.stage = 3, .dp = 4}, 2), "");
  EXPECT_EQ(refusal({.stage = 2, .dp = 4}, 1), "");
  EXPECT_NE(refusal({.stage = 2, .dp = 4}, 2).find("requires ZeRO stage 3 (got 2)"),
            std::string::npos);
  EXPECT_NE(refusal({.stage = 3, .dp = 4}, 3).find("a divisor of the 4 ranks of dp"),
            std::string::npos);
  EXPECT_NE(refusal({.stage = 3, .dp = 4, .ep = 2}, 2).find("requires ep 1"), std::string::npos);
  EXPECT_NE(refusal({.stage = 3, .dp = 4, .offloads_values = true}, 2).find("no offload_param"),
            std::string::npos);
  EXPECT_NE(refusal({.stage = 3, .dp = 4}, -1).find("is -1"), std::string::npos);
}

}  // namespace
}  // namespace zero

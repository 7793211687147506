// qgZ: the bits of the two hops against a second reading, and the bytes, memory and determinism of
// steps.

#include "zero/zero_plus_plus/quantized_gradients.h"

#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>

#include "zero/testing/plain_blocks.h"
#include "zero/testing/plus_plus_model.h"
#include "zero/zero_plus_plus/quantized_weights.h"

namespace zero {
namespace {

using machine::Dtype;
using machine::Operation;
using testing::coded;
using testing::PlusPlusModel;
using Values = std::vector<double>;

StepOptions quantized(int hpz, bool weights, bool gradients) {
  StepOptions options{.rule = AdamW{.learning_rate = 0.05}};
  options.plus_plus = {hpz, weights, gradients};
  return options;
}

double in_float(double value) { return static_cast<float>(value); }

TEST(QuantizedGradients, HopsAreTheRanksOfAHostAndThoseOfOnePlace) {
  const machine::Group dp{"dp", {1, 3, 5, 7, 9, 11}, 4};
  EXPECT_EQ(near_group(dp, 2).members, (std::vector{9, 11}));
  EXPECT_EQ(near_group(dp, 2).index, 0);
  EXPECT_EQ(far_group(dp, 2).members, (std::vector{1, 5, 9}));
  EXPECT_EQ(far_group(dp, 2).index, 2);
  EXPECT_EQ(far_group(dp, 3).members, (std::vector{3, 9}));
  EXPECT_EQ(first_hop({}, 6), 6);
  EXPECT_EQ(first_hop({.hpz_partition_size = 2}, 6), 2);
  EXPECT_EQ(first_hop({.hpz_partition_size = 2, .near_ranks = 3}, 6), 3);
  EXPECT_EQ(first_hop({.near_ranks = 1}, 6), 6);
  machine::run_ranks(
      3, [](machine::World& world) { EXPECT_EQ(ranks_of_a_host(world, world.group()), 3); });
}

// All bits: every rank's gradients are coded, summed inside a host in the order of its ranks, and
// the sums are coded again and summed in the order of hosts.
TEST(QuantizedGradients, SumAsASecondReading) {
  constexpr std::int64_t shard = 3 * 64;
  machine::run_ranks(6, [](machine::World& world) {
    const int d = world.size(), r = world.rank();
    const auto connect = [&](const machine::Group& group) {
      return collectives::Communicator(world, group, machine::Transport::shared_memory);
    };
    collectives::Communicator dp = connect(world.group());
    Layout layout;
    layout.shards = d;
    Bucket& bucket = layout.buckets.emplace_back();
    bucket.range = {0, d * shard};
    bucket.shards = d;
    const auto of_rank = [&](int rank) {
      Values values;
      for (std::int64_t i = 0; i < d * shard; ++i)
        values.push_back(in_float(
            std::pow(3, static_cast<double>(i / 64 % 5) - 2) *
            (2 * machine::uniform(static_cast<std::uint64_t>(rank), static_cast<std::uint64_t>(i)) -
             1)));
      return values;
    };
    for (const int near : {2, 3, 6}) {
      const bool two_hops = near < d;
      std::unique_ptr<collectives::Communicator> inside, between;
      if (two_hops) {
        inside = std::make_unique<collectives::Communicator>(world, near_group(world.group(), near),
                                                             machine::Transport::shared_memory);
        between = std::make_unique<collectives::Communicator>(world, far_group(world.group(), near),
                                                              machine::Transport::shared_memory);
      }
      const QuantizedGradients sums(world.device(), layout, dp, inside.get(), between.get());
      const Tensor gradients(world.device(), Dtype::float32, {d * shard},
                             machine::Category::gradients);
      from_doubles(gradients, of_rank(r));
      const Tensor own = gradients.slice(r * shard, {shard});
      sums.sum(gradients, own, world.device().stream(), false);
      Values want(shard);
      for (int host = 0; host < d / near; ++host) {
        Values of_host(shard);
        for (int rank = host * near; rank < (host + 1) * near; ++rank) {
          const Values all = coded(of_rank(rank), 7);
          for (std::int64_t i = 0; i < shard; ++i)
            of_host[i] = in_float(of_host[i] + all[r * shard + i]);
        }
        if (two_hops) of_host = coded(of_host, 7);
        for (std::int64_t i = 0; i < shard; ++i) want[i] = in_float(want[i] + of_host[i]);
      }
      ASSERT_EQ(to_doubles(own), want) << near;
    }
  });
}

// The bytes by group and label of a step after the first, and those of the closed formula.
struct Bytes {
  std::map<std::string, std::map<machine::TrafficLabel, std::uint64_t>> sent, formula;
};
Bytes bytes_of_step(machine::World& world, const StepOptions& options, int m) {
  PlusPlusModel model(world, Dtype::bfloat16, options, options.plus_plus.hpz_partition_size);
  model.whole_step(m);
  Bytes bytes;
  const std::vector<std::pair<std::string, collectives::Communicator*>> groups{
      {"dp", &model.dp},
      {"hpz", model.hpz.get()},
      {"qgz_near", model.near.get()},
      {"qgz_far", model.far.get()}};
  for (const auto& [name, group] : groups)
    if (group) group->link().reset_traffic();
  model.whole_step(m);
  for (const auto& [name, group] : groups)
    if (group)
      for (const auto& [label, traffic] : group->link().traffic())
        if (traffic.bytes_sent > 0 && label.dtype != Dtype::float64)
          bytes.sent[name][label] = traffic.bytes_sent;
  for (const CollectiveCalls& calls :
       expected_calls(3, model.plan, model.states->layout(), options, model.usage(m)))
    if (calls.dtype != Dtype::float64)
      bytes.formula[calls.group][{calls.operation, calls.dtype}] +=
          static_cast<std::uint64_t>(calls.calls * (calls.ranks - 1) * calls.count()) *
          size_of(calls.dtype);
  return bytes;
}

// Psi E a gather and Psi E the reduction, E = 2, become (1 + 1/32) Psi over dp and, of each host,
// (1/2 + 1/32) Psi between hosts. Without the scales these are 3/4 of Psi E in place of 3 Psi E.
TEST(QuantizedGradients, AQuarterOfTheBytesLeavesAHost) {
  machine::run_ranks(4, [](machine::World& world) {
    constexpr std::uint64_t d = 4, h = 2, m = 3;
    PlusPlusModel model(world, Dtype::bfloat16, quantized(1, false, false), 1);
    const auto psi = static_cast<std::uint64_t>(model.gathered()),
               published = static_cast<std::uint64_t>(model.persistent()),
               trained = static_cast<std::uint64_t>(model.states->layout().elements);
    const machine::TrafficLabel codes{Operation::all_gather, Dtype::uint8},
        values{Operation::all_gather, Dtype::bfloat16}, sums{Operation::all_to_all, Dtype::uint8};
    const auto code8 = [](std::uint64_t n) { return n + n / 32; };
    const auto code4 = [](std::uint64_t n) { return n / 2 + n / 32; };

    const Bytes both = bytes_of_step(world, quantized(h, true, true), m);
    EXPECT_EQ(both.sent, both.formula);
    EXPECT_EQ(both.sent.at("dp"),
              (std::map<machine::TrafficLabel, std::uint64_t>{
                  {values, (d - 1) * published / d * 2}, {codes, (d - 1) * m * code8(psi / d)}}));
    EXPECT_EQ(both.sent.at("hpz").at(values), (h - 1) * m * psi / h * 2);
    EXPECT_EQ(both.sent.at("qgz_near").at(sums), (h - 1) * m * d / h * code4(trained / d));
    EXPECT_EQ(both.sent.at("qgz_far").at(sums), (d / h - 1) * m * code4(trained / d));
    // Each of the h ranks of a host sends to the others of its place.
    EXPECT_EQ(h * both.sent.at("qgz_far").at(sums), (d / h - 1) * m * code4(trained) / (d / h));

    const Bytes one_hop = bytes_of_step(world, quantized(1, false, true), m);
    EXPECT_EQ(one_hop.sent, one_hop.formula);
    EXPECT_EQ(one_hop.sent.at("dp").at(sums), (d - 1) * m * code4(trained / d));
    EXPECT_FALSE(one_hop.sent.contains("qgz_near"));

    const Bytes weights = bytes_of_step(world, quantized(1, true, false), m);
    EXPECT_EQ(weights.sent, weights.formula);
    EXPECT_EQ(weights.sent.at("dp").at(codes), (d - 1) * m * 2 * code8(psi / d));
  });
}

// With and without overlap, prefetching and kept values, and in a second run.
TEST(QuantizedGradients, GiveTheSameBitsInAnyOrder) {
  machine::run_ranks(4, [](machine::World& world) {
    const auto train = [&](StepOptions options) {
      options.poison_freed = true;
      PlusPlusModel model(world, Dtype::bfloat16, options, options.plus_plus.hpz_partition_size);
      Values seen;
      for (const double scale : {1.0, std::numeric_limits<double>::infinity(), 2.0, 1.0}) {
        EXPECT_EQ(model.whole_step(2, scale).updated, scale < 3);
        const Values values = model.values();
        seen.insert(seen.end(), values.begin(), values.end());
      }
      for (const Values& theirs : world.all_gather(world.group(), seen)) EXPECT_EQ(theirs, seen);
      return seen;
    };
    const Values plain = train(quantized(1, false, false));
    for (const int hpz : {1, 2}) {
      StepOptions options = quantized(hpz, true, true);
      const Values first = train(options);
      EXPECT_NE(first, plain);
      EXPECT_EQ(train(options), first);
      options.overlap_comm = true;
      EXPECT_EQ(train(options), first);
      options.stage3_prefetch_bucket_size = 0;
      options.stage3_max_reuse_distance = 500;
      EXPECT_EQ(train(options), first);
    }
  });
}

// Codes of the largest bucket in both directions, and between two hops the sums of a host's shards.
TEST(QuantizedGradients, HoldTheCodesOfTheLargestBucket) {
  machine::run_ranks(4, [](machine::World& world) {
    std::size_t n = 0;
    const auto held = [&](const StepOptions& options) {
      const int hpz = options.plus_plus.hpz_partition_size;
      PlusPlusModel model(world, Dtype::bfloat16, options, hpz);
      const Layout& layout = model.states->layout();
      model.whole_step(2);
      world.device().ledger().reset_peaks();
      model.whole_step(2);
      collectives::CallsCost cost;  // the scratch of plans
      for (const CollectiveCalls& calls :
           expected_calls(3, model.plan, layout, options, model.usage(2)))
        cost.add(calls, "direct", world.rank());
      for (const Bucket& bucket : layout.buckets)
        if (!bucket.persistent) n = std::max(n, static_cast<std::size_t>(bucket.range.size()));
      const std::size_t formula =
          expected_memory(3, model.plan, layout, AdamW{}, options, model.usage(2)).buffers;
      EXPECT_EQ(world.device().ledger().peak(Category::buffers), formula + cost.scratch());
      return formula;
    };
    const std::size_t plain = held(quantized(1, false, false));
    EXPECT_EQ(held(quantized(1, true, false)) - plain, n + n / 32);
    EXPECT_EQ(held(quantized(1, false, true)) - plain, 2 * (n / 2 + n / 32));
    EXPECT_EQ(held(quantized(2, false, true)) - plain, 2 * (n / 2 + n / 32) + 4 * n / 2);
  });
}

TEST(QuantizedGradients, RefuseWhatTheyCannotCode) {
  const auto refusal = [](const PlusPlusCase& of, const PlusPlusOptions& options) {
    try {
      check(options, of);
    } catch (const std::invalid_argument& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const PlusPlusOptions weights{.quantized_weights = true}, gradients{.quantized_gradients = true};
  const auto names = [](const std::string& text, std::string_view words) {
    EXPECT_NE(text.find(words), std::string::npos) << text;
  };
  for (const PlusPlusOptions& options : {weights, gradients}) {
    EXPECT_EQ(refusal({.dp = 4}, options), "");
    EXPECT_EQ(refusal({.dp = 1}, options), "");
    EXPECT_EQ(refusal({.dp = 4, .offloads_values = true}, options), "");
    names(refusal({.stage = 2, .dp = 4}, options), "requires ZeRO stage 3 (got 2)");
    names(refusal({.dp = 4, .ep = 2}, options), "requires ep 1 (got 2)");
    names(refusal({.dp = 4, .values = Dtype::float64, .gradients = Dtype::float64}, options),
          "of float, bfloat16 or half (got double)");
  }
  names(refusal({.dp = 4, .wire = Dtype::float16}, gradients),
        "no other communication_data_type (got half)");
  EXPECT_EQ(refusal({.dp = 4, .wire = Dtype::float32}, gradients), "");
  names(refusal({.dp = 4, .predivision = 4}, gradients), "gradient_predivide_factor 1");
}

}  // namespace
}  // namespace zero

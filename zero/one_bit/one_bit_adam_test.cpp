#include "zero/one_bit/one_bit_adam.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "collectives/communicator/calls.h"
#include "zero/cost/cost.h"
#include "zero/testing/one_bit_case.h"

namespace zero {
namespace {

using machine::Dtype;
using Values = std::vector<double>;

constexpr double divisor = testing::OneBitTraining::divisor, u = 0x1p-24,
                 infinite = std::numeric_limits<double>::infinity();
const OneBitAdam rule{.learning_rate = 0.01, .weight_decay = 0.1, .freeze_step = 2};

// The codes of all ranks for one segment, a second time: signs and the root of the mean square of
// each share, whose error stays in `rest`.
struct PlainSum {
  std::vector<std::vector<float>> of_workers;
  std::vector<float> of_server;

  static std::vector<float> sent(std::vector<float>& rest, std::size_t share) {
    std::vector<float> all;
    for (std::size_t begin = 0; begin < rest.size(); begin += share) {
      const std::size_t end = std::min(rest.size(), begin + share);
      double squares = 0;
      for (std::size_t i = begin; i < end; ++i) squares += double{rest[i]} * double{rest[i]};
      const auto scale = static_cast<float>(std::sqrt(squares / static_cast<double>(end - begin)));
      for (std::size_t i = begin; i < end; ++i) {
        all.push_back(rest[i] < 0 ? -scale : scale);
        rest[i] -= all.back();
      }
    }
    return all;
  }
  Values sum(const std::vector<Values>& momenta) {
    const std::size_t size = momenta[0].size(), ranks = momenta.size(),
                      share = (size + ranks - 1) / ranks;
    of_workers.resize(ranks, std::vector<float>(size));
    of_server.resize(size);
    std::vector<float> sum(size);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      for (std::size_t i = 0; i < size; ++i)
        of_workers[rank][i] += static_cast<float>(momenta[rank][i]);
      const std::vector<float> came = sent(of_workers[rank], share);
      for (std::size_t i = 0; i < size; ++i) sum[i] = rank == 0 ? came[i] : sum[i] + came[i];
    }
    for (std::size_t i = 0; i < size; ++i) of_server[i] += sum[i];
    const std::vector<float> all = sent(of_server, share);
    return {all.begin(), all.end()};
  }
};

struct Trained : testing::OneBitTraining {
  Trained(machine::World& world, machine::Degrees degrees, Dtype dtype, double clip = infinite,
          Dtype gradients = Dtype::float32)
      : OneBitTraining(world, degrees, dtype, rule, clip, gradients) {}
};

void expect_near(const Values& got, const Values& wanted, const Values& bound, const char* what) {
  ASSERT_EQ(got.size(), wanted.size()) << what;
  for (std::size_t i = 0; i < got.size(); ++i)
    ASSERT_LE(std::abs(got[i] - wanted[i]), bound[i]) << what << " " << i << ": " << got[i];
}

// Every element of a step, from the step's own inputs, in double.
struct PlainStep {
  Values gradient, momentum, variance, master;
  double scale = 1;
  std::vector<bool> decays;
};

void compare(const PlainStep& before, const Values& momentum, const RangeStates& after,
             bool frozen) {
  Values variance = before.variance, v_bound, w, w_bound;
  for (std::size_t i = 0; i < variance.size(); ++i) {
    const double g = before.scale * before.gradient[i];
    if (frozen)
      variance[i] = variance[i] == 0 ? infinite : variance[i];
    else
      variance[i] = rule.beta2 * variance[i] + (1 - rule.beta2) * g * g;
    v_bound.push_back(frozen ? 0 : 8 * u * variance[i]);
    const double decay = before.decays[i] ? rule.weight_decay : 0;
    const double move = momentum[i] / (std::sqrt(variance[i]) + rule.epsilon);
    w.push_back(before.master[i] - rule.learning_rate * (move + decay * before.master[i]));
    w_bound.push_back(16 * u * (std::abs(before.master[i]) + rule.learning_rate * std::abs(move)));
  }
  Values got = to_doubles(after.second_moment);
  for (std::size_t i = 0; i < got.size(); ++i)
    if (std::isinf(variance[i])) {
      ASSERT_EQ(got[i], infinite) << i;
      got[i] = variance[i] = 0;
    }
  expect_near(got, variance, v_bound, "variance");
  expect_near(to_doubles(after.master), w, w_bound, "master");
}

// Uses expectations, because a rank that left early would let the other ranks wait in a gather.
void train(machine::World& world, machine::Degrees degrees, Dtype dtype, double clip,
           Dtype gradients) {
  Trained trained(world, degrees, dtype, clip, gradients);
  const Layout& layout = trained.states.layout();
  const int dp = degrees.dp;
  std::map<std::size_t, PlainSum> sums;
  std::vector<bool> decays(static_cast<std::size_t>(layout.elements)), used = decays;
  for (std::size_t row = 0; row < trained.plan.rows.size(); ++row)
    for (std::int64_t i = 0; i < trained.plan.rows[row].elements; ++i) {
      const auto element = static_cast<std::size_t>(layout.offsets[row] + i);
      used[element] = true;
      decays[element] = trained.plan.rows[row].weight_decay;
    }
  double smallest_clip = 1;
  for (int at = 0; at < 5; ++at) {
    SCOPED_TRACE(at);
    const bool frozen = at >= rule.freeze_step;
    trained.model.set_gradients(at);
    trained.step->reduce();
    const RangeStates states = trained.kept();
    PlainStep before{to_doubles(trained.states.gradients()),
                     to_doubles(states.first_moment),
                     to_doubles(states.second_moment),
                     to_doubles(states.master),
                     1,
                     decays};
    const StepResult result = trained.step->update();
    // The norm of this rank's model, of which tp and pp have parts.
    double squares = 0;
    for (const Segment& segment : layout.segments)
      for (std::int64_t i = segment.range.begin; i < segment.range.end; ++i)
        squares += std::pow(before.gradient[static_cast<std::size_t>(i)], 2) / segment.replicas;
    double whole = 0, largest = 0;
    const auto places = world.all_gather(
        world.group(), frozen ? trained.model.grid.coordinate(machine::Axis::dp) : 0);
    const auto all = world.all_gather(world.group(), squares);
    std::map<int, double> of_replicas;
    for (std::size_t rank = 0; rank < all.size(); ++rank) of_replicas[places[rank]] += all[rank];
    for (auto& [place, sum] : of_replicas) {
      // Before the freeze all ranks of dp have the same sums.
      sum = (frozen ? dp : 1) * std::sqrt(sum / (frozen ? 1 : dp)) / divisor;
      largest = std::max(largest, sum);
    }
    whole = of_replicas[frozen ? trained.model.grid.coordinate(machine::Axis::dp) : 0];
    EXPECT_NEAR(result.gradient_norm, largest, 1e-12 * largest);
    EXPECT_NEAR(result.clip_factor, std::min(1.0, clip / whole), 1e-12);
    smallest_clip = std::min(smallest_clip, result.clip_factor);
    before.scale = result.clip_factor / divisor;
    Values momentum(before.momentum.size()), bound;
    for (std::size_t i = 0; i < momentum.size(); ++i) {
      const double old = rule.beta1 / (frozen ? dp : 1) * before.momentum[i],
                   more = (1 - rule.beta1) * before.scale * before.gradient[i];
      momentum[i] = old + more;
      bound.push_back(4 * u * (std::abs(old) + std::abs(more)));
    }
    const RangeStates after = trained.kept();
    const Values got = to_doubles(after.first_moment);
    if (frozen && dp > 1) {
      Values own(got.size()), summed = own;
      for (std::size_t i = 0; i < layout.segments.size(); ++i) {
        const Range range = layout.segments[i].range;
        const auto begin = static_cast<std::ptrdiff_t>(range.begin);
        const Values& mine = trained.watch.momenta.at(i);
        std::ranges::copy(mine, own.begin() + begin);
        std::ranges::copy(
            sums[i].sum(world.all_gather(trained.model.grid.group(machine::Axis::dp), mine)),
            summed.begin() + begin);
      }
      expect_near(own, momentum, bound, "momentum of a rank");
      EXPECT_EQ(got, summed);  // bit for bit
    } else {
      expect_near(got, momentum, bound, "momentum");
    }
    compare(before, got, after, frozen);
    const Values master = to_doubles(after.master), values = to_doubles(after.values);
    for (std::size_t i = 0; i < values.size(); ++i)
      EXPECT_LE(std::abs(values[i] - master[i]),
                dtype == Dtype::float32 ? 0 : machine::unit_roundoff(dtype) * std::abs(master[i]));
    for (const double gradient : to_doubles(trained.states.gradients())) EXPECT_EQ(gradient, 0);
    // Padding stays zero, although codes have no zero.
    for (std::size_t i = 0; i < values.size(); ++i) EXPECT_TRUE(used[i] || values[i] == 0) << i;
  }
  EXPECT_EQ(smallest_clip < 1, clip < 1);
}

TEST(OneBitAdam, MatchesPlainLoopsOfEveryStep) {
  using enum Dtype;
  const std::vector<machine::Degrees> grids = {
      {}, {.dp = 3}, {.tp = 2, .dp = 2}, {.tp = 2, .dp = 2, .pp = 2}};
  for (const machine::Degrees& degrees : grids)
    machine::run_ranks(degrees.ranks(), [&](machine::World& world) {
      train(world, degrees, float32, infinite, float32);
      train(world, degrees, bfloat16, 0.02, bfloat16);
      if (degrees.dp == 3) train(world, degrees, bfloat16, 0.02, float32);
    });
}

TEST(OneBitAdam, KeepsReplicasEqual) {
  machine::run_ranks(8, [&](machine::World& world) {
    Trained trained(world, {.tp = 2, .dp = 2, .pp = 2}, Dtype::float32, 0.02);
    for (int at = 0; at < 4; ++at) {
      trained.model.set_gradients(at);
      trained.step->step();
    }
    for (const Parameter& parameter : trained.model.parameters) {
      std::string place = parameter.name;
      if (parameter.placement.tp == collectives::Spread::sharded)
        place += " " + std::to_string(trained.model.grid.coordinate(machine::Axis::tp));
      const auto places = world.all_gather(world.group(), place);
      const auto hashes = world.all_gather(world.group(), hash(parameter.value));
      for (std::size_t rank = 0; rank < places.size(); ++rank) {
        if (places[rank] != place) continue;
        EXPECT_EQ(hashes[rank], hash(parameter.value)) << place;
      }
    }
  });
}

TEST(OneBitAdam, SendsAndHoldsItsFormulasBytesInBothPhases) {
  for (const int dp : {2, 3})
    machine::run_ranks(dp, [&](machine::World& world) {
      const std::size_t held = world.device().ledger().current(machine::Category::buffers);
      Trained trained(world, {.dp = dp}, Dtype::float32);
      const Layout& layout = trained.states.layout();
      const ExpectedMemory expected = expected_memory(0, trained.plan, layout, rule, {});
      EXPECT_EQ(world.device().ledger().current(machine::Category::buffers) - held,
                expected.buffers);
      for (int at = 0; at < 4; ++at) {
        trained.model.set_gradients(at);
        trained.model.dp->link().reset_traffic();
        trained.step->step();
        StepOptions options = trained.options;
        options.rule = rule_after(rule, at);
        collectives::CallsCost cost;
        for (const auto& calls : expected_calls(0, trained.plan, layout, options))
          cost.add(calls, *trained.model.dp, asked_algorithm(calls, options));
        std::map<machine::TrafficLabel, machine::Traffic> sent;
        for (const auto& [label, traffic] : trained.model.dp->link().traffic())
          if (traffic != machine::Traffic{}) sent[label] = traffic;
        EXPECT_EQ(sent, cost.traffic("dp")) << at;
        std::size_t codes = 0;  // by hand: shares of whole bytes, each twice
        for (const Segment& segment : layout.segments)
          codes += static_cast<std::size_t>((4 + ((segment.range.size() + dp - 1) / dp + 7) / 8) *
                                            (dp - 1) * 2);
        std::size_t bytes = 0;
        for (const auto& [label, traffic] : sent)
          if (label.dtype == Dtype::uint8) bytes += traffic.bytes_sent;
        EXPECT_EQ(bytes, at < 2 ? 0 : codes);
      }
      EXPECT_EQ(trained.step->compression_host()->ledger().peak(), expected.compression);
    });
}

// A step that one rank's gradients overflow is skipped by all, before and after the freeze.
TEST(OneBitAdam, SkipsAStepOnAllRanks) {
  machine::run_ranks(2, [&](machine::World& world) {
    Trained trained(world, {.dp = 2}, Dtype::float32);
    for (int at = 0; at < 4; ++at) {
      trained.model.set_gradients(at);
      if (world.rank() == 1)
        from_doubles(
            trained.model.parameters[1].gradient,
            Values(static_cast<std::size_t>(trained.model.parameters[1].value.size()), infinite));
      const RangeStates states = trained.kept();
      const auto bits = [&] {
        return std::vector{hash(states.values), hash(states.first_moment),
                           hash(states.second_moment)};
      };
      const auto before = bits();
      EXPECT_FALSE(trained.step->step().updated);
      EXPECT_EQ(bits(), before);
      EXPECT_EQ(trained.step->optimizer().steps(), at);
      trained.model.set_gradients(at);
      EXPECT_TRUE(trained.step->step().updated);
      EXPECT_NE(bits(), before);
    }
  });
}

// Loaded states begin without errors: the next sums are those of a fresh optimizer.
TEST(OneBitAdam, ForgetsItsErrorsWhenStatesAreLoaded) {
  machine::run_ranks(2, [&](machine::World& world) {
    Trained trained(world, {.dp = 2}, Dtype::float32), fresh(world, {.dp = 2}, Dtype::float32);
    for (int at = 0; at < 4; ++at) {
      trained.model.set_gradients(at);
      trained.step->step();
    }
    const RangeStates from = trained.kept(), to = fresh.kept();
    testing::copy_states(from, to);
    for (Trained* const each : {&trained, &fresh}) {
      each->step->optimizer().set_steps(4);
      each->step->values_loaded();
      each->model.set_gradients(4);
      each->step->step();
    }
    EXPECT_EQ(hash(from.first_moment), hash(to.first_moment));
    EXPECT_EQ(hash(from.values), hash(to.values));
  });
}

TEST(OneBitAdam, RejectsWhatItDoesNotSupport) {
  const auto why = [](const OneBitLimits& limits, const OneBitAdam& adam = {}) {
    try {
      check_one_bit(adam, limits);
    } catch (const std::invalid_argument& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(why({.dp = 2}), "");
  EXPECT_EQ(why({.value_dtype = Dtype::float64}), "");
  EXPECT_NE(why({.stage = 1}).find("requires ZeRO stage 0 (got 1)"), std::string::npos);
  EXPECT_NE(why({.offloads = true}).find("offload_param none"), std::string::npos);
  EXPECT_NE(why({.compresses_gradients = true}).find("no gradient-compression"), std::string::npos);
  EXPECT_NE(why({.ep = 2}).find("size 1 (got 2)"), std::string::npos);
  EXPECT_NE(why({.dp = 2, .value_dtype = Dtype::float64}).find("(got double)"), std::string::npos);
  EXPECT_NE(why({}, {.freeze_step = 0}).find("freeze_step"), std::string::npos);
}

}  // namespace
}  // namespace zero

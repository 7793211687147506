#include "zero/one_bit/one_bit_lamb.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "collectives/communicator/calls.h"
#include "zero/cost/cost.h"
#include "zero/testing/one_bit_case.h"

namespace zero {
namespace {

using machine::Axis;
using machine::Dtype;
using Values = std::vector<double>;

constexpr double divisor = testing::OneBitTraining::divisor, u = 0x1p-24,
                 infinite = std::numeric_limits<double>::infinity();
const OneBitLamb rule{.learning_rate = 0.01, .beta2 = 0.9, .weight_decay = 0.1, .freeze_step = 2};

struct Trained : testing::OneBitTraining {
  Trained(machine::World& world, machine::Degrees degrees, Dtype dtype, const OneBitLamb& lamb,
          Dtype gradients = Dtype::float32)
      : OneBitTraining(world, degrees, dtype, lamb, infinite, gradients) {}
  std::vector<OneBitLambOptimizer::Ratios>& ratios() {
    return dynamic_cast<OneBitLambOptimizer&>(step->optimizer()).ratios();
  }
};

// LAMB's step of one parameter of a rank in plain loops, from the judged run's own values,
// variances, gradients and momenta. Norms and quotients are of all ranks of tp that share it.
struct PlainRow {
  Values fresh;
  double coefficient = 0, last = 1, scaling = 1;
};

struct Sums {
  double weight = 0, update = 0, without_decay = 0, momentum = 0, elements = 0, quotient = 0;
  static auto members(auto& self) {
    return std::tie(self.weight, self.update, self.without_decay, self.momentum, self.elements,
                    self.quotient);
  }
};

// Expectations, not assertions: the other ranks wait for each gather.
void train(machine::World& world, machine::Degrees degrees, Dtype dtype, const OneBitLamb& lamb) {
  Trained trained(world, degrees, dtype, lamb, dtype);
  const Layout& layout = trained.states.layout();
  const GradientPlan& plan = trained.plan;
  const int dp = degrees.dp;
  std::vector<PlainRow> rows(plan.rows.size());
  bool limited = false, free = false;
  for (int at = 0; at < 6; ++at) {
    SCOPED_TRACE(at);
    const bool frozen = at >= lamb.freeze_step;
    trained.model.set_gradients(at);
    trained.step->reduce();
    const RangeStates states = trained.kept();
    const Values gradient = to_doubles(trained.states.gradients()),
                 last = to_doubles(states.first_moment), master = to_doubles(states.master),
                 before = to_doubles(states.second_moment);
    trained.step->update();
    const Values momentum = to_doubles(states.first_moment), after = to_doubles(states.master),
                 variance = to_doubles(states.second_moment);
    // Sums over the ranks of tp, each of which has a part or the whole of a parameter.
    const auto over_tp = [&](std::size_t row, Sums mine) {
      const bool whole =
          trained.model.parameters[row].placement.tp == collectives::Spread::replicated;
      Sums all;
      for (const Sums& each : world.all_gather(trained.model.grid.group(Axis::tp), mine)) {
        const double part = whole ? degrees.tp : 1;
        all.weight += each.weight / part;
        all.update += each.update / part;
        all.without_decay += each.without_decay / part;
        all.momentum += each.momentum / part;
        all.elements += each.elements / part;
        all.quotient = std::max(all.quotient, each.quotient);
      }
      return all;
    };
    if (frozen && at == lamb.freeze_step)
      for (const Segment& segment : layout.segments) {
        std::map<std::size_t, double> roots;
        double sum = 0;
        for (std::size_t row = 0; row < rows.size(); ++row) {
          Sums mine;
          for (std::int64_t i = 0; i < plan.rows[row].elements; ++i)
            mine.momentum += std::pow(last[static_cast<std::size_t>(layout.offsets[row] + i)], 2);
          mine.elements = static_cast<double>(plan.rows[row].elements);
          const Sums all = over_tp(row, mine);
          if (layout.offsets[row] < segment.range.begin || layout.offsets[row] >= segment.range.end)
            continue;
          sum += roots[row] = std::sqrt(all.momentum / all.elements);
        }
        for (const auto& [row, root] : roots)
          rows[row].scaling = sum / static_cast<double>(roots.size()) / root;
      }
    for (std::size_t row = 0; row < rows.size(); ++row) {
      PlainRow& mine = rows[row];
      mine.fresh.resize(static_cast<std::size_t>(plan.rows[row].elements));
      const double decay = plan.rows[row].weight_decay ? lamb.weight_decay : 0;
      Values updates, sizes;
      Sums sums;
      for (std::size_t i = 0; i < mine.fresh.size(); ++i) {
        const std::size_t e = static_cast<std::size_t>(layout.offsets[row]) + i;
        const double g = gradient[e] / divisor;
        const double old = lamb.beta1 / (frozen ? dp : 1) * last[e], more = (1 - lamb.beta1) * g;
        double formed = momentum[e];
        if (frozen && dp > 1) {
          for (std::size_t s = 0; s < layout.segments.size(); ++s)
            if (const Range range = layout.segments[s].range;
                layout.offsets[row] >= range.begin && layout.offsets[row] < range.end)
              formed = trained.watch.momenta.at(s)[e - static_cast<std::size_t>(range.begin)];
          formed /= mine.scaling;
        }
        EXPECT_NEAR(formed, old + more, 12 * u * (std::abs(old) + std::abs(more)));
        if (!frozen) {
          mine.fresh[i] = lamb.beta2 * before[e] + (1 - lamb.beta2) * g * g;
          EXPECT_NEAR(variance[e], mine.fresh[i], 8 * u * mine.fresh[i]);
        } else {
          EXPECT_EQ(variance[e], before[e]);  // all elements have gradients
          const double mean = (momentum[e] - lamb.beta1 * last[e]) / (1 - lamb.beta1);
          mine.fresh[i] = lamb.beta2 * mine.fresh[i] + (1 - lamb.beta2) * mean * mean;
          sums.quotient = std::max(sums.quotient, (std::sqrt(variance[e]) + lamb.epsilon) /
                                                      (std::sqrt(mine.fresh[i]) + lamb.epsilon));
        }
        const double move = momentum[e] / (std::sqrt(variance[e]) + lamb.epsilon);
        updates.push_back(move + decay * master[e]);
        sizes.push_back(std::abs(move) + std::abs(decay * master[e]));
        sums.weight += master[e] * master[e];
        sums.update += updates[i] * updates[i];
        sums.without_decay += move * move;
      }
      const Sums all = over_tp(row, sums);
      double ratio = std::sqrt(all.weight / all.update);
      ratio = std::min(lamb.max_coeff, std::max(lamb.min_coeff, ratio));
      if (!frozen) {
        mine.coefficient = lamb.coeff_beta * mine.coefficient + (1 - lamb.coeff_beta) * ratio;
      } else {
        const double part = std::sqrt(all.without_decay / all.update);
        double factor = part < 1 ? all.quotient * part + 1 - part : all.quotient;
        factor = std::min(lamb.factor_max, std::max(lamb.factor_min, factor));
        const double most = mine.last * (1 + lamb.factor_threshold),
                     least = mine.last * (1 - lamb.factor_threshold);
        (factor > most || factor < least ? limited : free) = true;
        mine.last = std::min(most, std::max(least, factor));
        ratio = mine.coefficient * mine.last;
      }
      // A ratio has a relative error of some roundings of norms; a reconstructed gradient that of
      // a difference, which the quotient's limits bound.
      for (std::size_t i = 0; i < updates.size(); ++i) {
        const std::size_t e = static_cast<std::size_t>(layout.offsets[row]) + i;
        const double wanted = master[e] - lamb.learning_rate * ratio * updates[i];
        EXPECT_NEAR(after[e], wanted,
                    4 * u * std::abs(master[e]) + 64 * u * lamb.learning_rate * ratio * sizes[i])
            << row << " " << i;
      }
    }
    const Values values = to_doubles(states.values);
    for (std::size_t i = 0; i < values.size(); ++i)
      EXPECT_LE(std::abs(values[i] - after[i]),
                dtype == Dtype::float32 ? 0 : machine::unit_roundoff(dtype) * std::abs(after[i]));
  }
  EXPECT_TRUE(lamb.factor_threshold > 1 ? free : limited);
}

TEST(OneBitLamb, MatchesPlainLoopsOfEveryStep) {
  const std::vector<machine::Degrees> grids = {
      {}, {.dp = 3}, {.tp = 2, .dp = 2}, {.tp = 2, .dp = 2, .pp = 2}};
  OneBitLamb narrow = rule, wide = rule;
  narrow.factor_threshold = 0.01;
  wide.factor_threshold = 2;
  wide.factor_max = 2;
  for (const machine::Degrees& degrees : grids)
    machine::run_ranks(degrees.ranks(), [&](machine::World& world) {
      train(world, degrees, Dtype::float32, narrow);
      train(world, degrees, Dtype::bfloat16, wide);
    });
}

TEST(OneBitLamb, KeepsReplicasEqual) {
  machine::run_ranks(8, [&](machine::World& world) {
    Trained trained(world, {.tp = 2, .dp = 2, .pp = 2}, Dtype::float32, rule);
    for (int at = 0; at < 4; ++at) {
      trained.model.set_gradients(at);
      trained.step->step();
    }
    for (const Parameter& parameter : trained.model.parameters) {
      std::string place = parameter.name;
      if (parameter.placement.tp == collectives::Spread::sharded)
        place += " " + std::to_string(trained.model.grid.coordinate(Axis::tp));
      const auto places = world.all_gather(world.group(), place);
      const auto hashes = world.all_gather(world.group(), hash(parameter.value));
      for (std::size_t rank = 0; rank < places.size(); ++rank) {
        if (places[rank] != place) continue;
        EXPECT_EQ(hashes[rank], hash(parameter.value)) << place;
      }
    }
  });
}

TEST(OneBitLamb, SendsAndHoldsItsFormulasBytesInBothPhases) {
  machine::run_ranks(4, [&](machine::World& world) {
    using machine::Category;
    machine::Ledger& ledger = world.device().ledger();
    const std::size_t buffers = ledger.current(Category::buffers),
                      states = ledger.current(Category::optimizer);
    Trained trained(world, {.tp = 2, .dp = 2}, Dtype::float32, rule);
    const Layout& layout = trained.states.layout();
    const ExpectedMemory expected = expected_memory(0, trained.plan, layout, rule, {});
    EXPECT_EQ(ledger.current(Category::buffers) - buffers, expected.buffers);
    EXPECT_EQ(ledger.current(Category::optimizer) - states, expected.optimizer);
    EXPECT_EQ(expected.optimizer, static_cast<std::size_t>(12 * layout.elements));
    for (int at = 0; at < 5; ++at) {
      const std::map<std::string, collectives::Communicator*> groups{
          {"tp", trained.model.tp.get()}, {"dp", trained.model.dp.get()}};
      trained.model.set_gradients(at);
      for (const auto& [name, group] : groups) group->link().reset_traffic();
      trained.step->step();
      if (at == rule.freeze_step) continue;  // also gathers the norms of momenta
      StepOptions options = trained.options;
      options.rule = rule_after(rule, at);
      collectives::CallsCost cost;
      for (const auto& calls : expected_calls(0, trained.plan, layout, options))
        cost.add(calls, *groups.at(calls.group), asked_algorithm(calls, options));
      for (const auto& [name, group] : groups) {
        std::map<machine::TrafficLabel, machine::Traffic> sent;
        for (const auto& [label, traffic] : group->link().traffic())
          if (traffic != machine::Traffic{}) sent[label] = traffic;
        EXPECT_EQ(sent, cost.traffic(name)) << at << " " << name;
      }
    }
  });
}

// Loaded states begin without errors of codes. All else continues, at any step of both phases.
TEST(OneBitLamb, ContinuesLoadedStatesWithTheSameBits) {
  for (const int dp : {1, 2})
    for (const Dtype dtype : {Dtype::float32, Dtype::bfloat16})
      for (const int steps : {1, 2, 3, 5})
        machine::run_ranks(dp, [&](machine::World& world) {
          SCOPED_TRACE(std::to_string(dp) + " ranks, step " + std::to_string(steps));
          Trained trained(world, {.dp = dp}, dtype, rule, dtype),
              fresh(world, {.dp = dp}, dtype, rule, dtype);
          for (int at = 0; at < steps; ++at) {
            trained.model.set_gradients(at);
            trained.step->step();
          }
          const RangeStates from = trained.kept(), to = fresh.kept();
          EXPECT_EQ(hash(to.fresh_variance) == hash(from.fresh_variance),
                    steps <= rule.freeze_step);
          testing::copy_states(from, to);
          fresh.ratios() = trained.ratios();
          for (Trained* const each : {&trained, &fresh}) {
            // Without replicas there are no errors that the load would forget.
            if (each == &fresh || dp > 1) each->step->optimizer().set_steps(steps);
            each->step->values_loaded();
            for (int at = steps; at < steps + 2; ++at) {
              each->model.set_gradients(at);
              each->step->step();
            }
          }
          EXPECT_EQ(hash(from.values), hash(to.values));
          EXPECT_EQ(hash(from.first_moment), hash(to.first_moment));
          EXPECT_EQ(hash(from.second_moment), hash(to.second_moment));
          EXPECT_EQ(hash(from.fresh_variance), hash(to.fresh_variance));
        });
}

TEST(OneBitLamb, LimitsItsFactor) {
  const OneBitLamb lamb;
  EXPECT_EQ(next_factor(lamb, 1.05, 1, 1), 1.05);
  EXPECT_EQ(next_factor(lamb, 1.05, 0.5, 1), 1.025);  // half of the update is decay
  EXPECT_EQ(next_factor(lamb, 1.05, 7, 1), 1.05);     // decay may be opposed to the rest
  EXPECT_EQ(next_factor(lamb, 100, 1, 1), 1.1);       // a tenth more
  EXPECT_EQ(next_factor(lamb, 0, 1, 1), 0.9);         // a tenth less
  EXPECT_EQ(next_factor(lamb, 100, 1, 3.9), 4);       // factor_max
  EXPECT_EQ(next_factor(lamb, 0, 1, 0.52), 0.5);      // factor_min
}

TEST(OneBitLamb, RejectsWhatItDoesNotSupport) {
  const auto why = [](const OneBitLamb& lamb, const OneBitLimits& limits = {}) {
    try {
      check_one_bit(lamb, limits);
    } catch (const std::invalid_argument& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(why({}), "");
  EXPECT_NE(why({}, {.stage = 1}).find("one_bit_lamb requires ZeRO stage 0 (got 1)"),
            std::string::npos);
  EXPECT_NE(why({.freeze_step = 0}).find("freeze_step"), std::string::npos);
  EXPECT_NE(why({.min_coeff = 2, .max_coeff = 1}).find("min_coeff is 2"), std::string::npos);
  EXPECT_NE(why({.coeff_beta = 1}).find("coeff_beta is 1"), std::string::npos);
  EXPECT_NE(why({.factor_max = 0.1}).find("factor_max is 0.1"), std::string::npos);
  EXPECT_NE(why({.factor_threshold = 0}).find("factor_threshold is 0"), std::string::npos);
}

}  // namespace
}  // namespace zero

#include "suite/training_step/compressed/driven_training.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "harness/judge/numerics.h"
#include "machine/device/random.h"
#include "suite/training_step/reference.h"
#include "suite/training_step/shared_runs.h"

namespace suite {

namespace {

using machine::Axis;
using machine::Dtype;
using Values = std::vector<double>;

// Roundings of float in the update of an element: moments, corrections, quotient, decay and value.
constexpr double update_roundings = 16;

// Returns a factor of -1 or 1 for each element.
Values random_signs(std::uint64_t salt, const std::string& name, std::size_t size) {
  const std::uint64_t key = layers::random_key(salt, name);
  Values signs(size);
  for (std::size_t i = 0; i < size; ++i) signs[i] = machine::uniform(key, i) < 0.5 ? -1 : 1;
  return signs;
}

// Displaces every element by a few roundings of float, with random signs.
GradientSums displaced(const GradientSums& sums, int probe) {
  GradientSums all = sums;
  for (std::size_t step = 0; step < all.size(); ++step)
    for (auto& [name, values] : all[step]) {
      const Values signs =
          random_signs(static_cast<std::uint64_t>(1000 * probe) + step, name, values.size());
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] *= 1 + signs[i] * update_roundings * unit_roundoff(Dtype::float32);
    }
  return all;
}

// Values of 16 bits are roundings of their masters.
ValueShifts rounded_values(const TrainingConfig& config, int probe) {
  if (size_of(config.precision.dtype) != 2) return {};
  return [u = unit_roundoff(config.precision.dtype), probe](
             std::size_t step, const std::string& name, const Values& values) {
    Values shifts =
        random_signs(static_cast<std::uint64_t>(1000 * probe + 500) + step, name, values.size());
    for (std::size_t i = 0; i < shifts.size(); ++i) shifts[i] *= u * values[i];
    return shifts;
  };
}

// The plain training and, of each step, the largest distances of the displaced ones from it.
struct Driven {
  std::vector<DrivenStep> exact;
  std::vector<std::map<std::string, double>> values, gradients;
  Values losses;
  static auto members(auto& self) {
    return std::tie(self.exact, self.values, self.gradients, self.losses);
  }
};

// The result is rank 0's. Collective over the group.
Driven drive(machine::World& world, const machine::Group& group, const TrainingConfig& config,
             const Corpus& corpus, const GradientSums& sums, const std::vector<bool>& skipped) {
  const auto alive = [&] { world.board().mine().progress.fetch_add(1); };
  std::vector<std::function<std::vector<DrivenStep>()>> runs{
      [&] { return driven_history(config, corpus, sums, alive, skipped); }};
  for (int probe = 1; probe <= probes; ++probe)
    runs.emplace_back([&, probe] {
      return driven_history(config, corpus, displaced(sums, probe), alive, skipped,
                            rounded_values(config, probe));
    });
  // The plain loops train only small models, which fit several times.
  const auto histories = shared_runs(world, group, group.size(), runs);
  if (group.index != 0) return {};
  Driven driven{histories[0], {}, {}, Values(sums.size())};
  driven.values.resize(sums.size());
  driven.gradients.resize(sums.size());
  for (int probe = 1; probe <= probes; ++probe) {
    const std::vector<DrivenStep>& other = histories[static_cast<std::size_t>(probe)];
    for (std::size_t step = 0; step < sums.size(); ++step) {
      driven.losses[step] = std::max(
          driven.losses[step], probe_margin * std::abs(other[step].loss - driven.exact[step].loss));
      for (const auto& [name, values] : driven.exact[step].values) {
        double& most = driven.values[step][name];
        most = std::max(most, probe_margin * distance(values, other[step].values.at(name)));
      }
      for (const auto& [name, gradient] : driven.exact[step].gradients) {
        double& most = driven.gradients[step][name];
        most = std::max(most, probe_margin * distance(gradient, other[step].gradients.at(name)));
      }
    }
  }
  return driven;
}

void compare(harness::Judge& judge, const TrainingConfig& config, Trainer& trainer,
             const std::vector<JudgedStep>& mine, const Driven& driven,
             CompressedTraining& training) {
  auto& [losses, exact, bounds, error] = training;
  const double u = unit_roundoff(config.precision.dtype);
  const double master = std::min(u, unit_roundoff(Dtype::float32));
  // A master of values of 16 bits begins as a rounding, and the values are rounded from it.
  const double rounded = u > master ? 2 * u : u;
  const int tp_rank = trainer.grid().coordinate(Axis::tp);
  double elements = 0;
  for (const auto& [name, values] : driven.exact.front().values)
    elements += static_cast<double>(values.size());
  for (std::size_t step = 0; step < mine.size(); ++step) {
    const JudgedStep& got = mine[step];
    const DrivenStep& want = driven.exact[step];
    const auto number = static_cast<double>(step);
    bounds.push_back(driven.losses[step] + loss_epsilon(config) * std::abs(want.loss));
    losses.push_back(got.loss);
    exact.push_back(want.loss);
    error = std::max(error, std::abs(got.loss / want.loss - 1));
    judge.numerics(fmt::format("loss of step {} against double", step + 1),
                   std::abs(got.loss - want.loss), bounds.back());
    if (got.gradient_norm)
      judge.numerics(
          fmt::format("norm of the compressed gradients of step {}", step + 1),
          std::abs(*got.gradient_norm - want.gradient_norm),
          harness::gamma(2 * elements, unit_roundoff(Dtype::float64)) * want.gradient_norm);
    for (const collectives::Parameter* parameter : trainer.parameters()) {
      const std::string& name = parameter->name;
      judge.exact(name + " is trained", std::vector{got.gradients.contains(name) ? 1.0 : 0.0},
                  std::vector{want.gradients.contains(name) ? 1.0 : 0.0});
      if (want.gradients.contains(name) && !got.skipped) {
        const Values& gradient = want.gradients.at(name);
        const double size = got.terms.contains(name) ? got.terms.at(name) : norm(gradient);
        // Weights have the roundings of earlier updates too (4 * 1.03^depth: reference.h).
        const double depth = config.model.layers + 1 - parameter->layer;
        const double relative = gradient_epsilon(config, parameter->layer) +
                                4 * std::pow(1.03, depth) * 2 * number * master;
        judge.numerics(
            fmt::format("{}, raw gradient of step {} before compression", name, step + 1),
            distance(got.gradients.at(name), shard(gradient, *parameter, tp_rank)),
            relative * size + driven.gradients[step].at(name));
      }
      const Values& value = want.values.at(name);
      judge.numerics(
          fmt::format("{}, value after step {}", name, step + 1),
          distance(got.values.at(name), shard(value, *parameter, tp_rank)),
          driven.values[step].at(name) + (rounded + 2 * (number + 1) * master) * norm(value));
    }
  }
}

}  // namespace

ValuesPart part_of(const Trainer& trainer, const collectives::Parameter& parameter, Values values) {
  const machine::Region region = parameter.region(trainer.grid().coordinate(Axis::tp));
  const bool vector = parameter.value.shape().rank() == 1;
  return {parameter.name,     region.row,
          region.col,         vector ? parameter.value.size() : parameter.value.cols(),
          region.global_cols, parameter.global_shape.size(),
          std::move(values)};
}

PartsByRank gathered(const harness::Context& context, Trainer& trainer,
                     const std::function<Values(const collectives::Parameter&)>& values) {
  std::vector<ValuesPart> parts;
  for (const collectives::Parameter* parameter : trainer.parameters())
    if (parameter->gradient)  // not frozen
      parts.push_back(part_of(trainer, *parameter, values(*parameter)));
  return context.world.all_gather(context.group, parts);
}

ValuesByName joined(const PartsByRank& parts) {
  ValuesByName whole;
  for (const std::vector<ValuesPart>& of_rank : parts)
    for (const ValuesPart& part : of_rank) {
      Values& values = whole[part.name];
      values.resize(static_cast<std::size_t>(part.global_size));
      const std::int64_t rows = std::ssize(part.values) / part.columns;
      for (std::int64_t row = 0; row < rows; ++row)
        std::copy_n(part.values.begin() + row * part.columns, part.columns,
                    values.begin() + (part.row + row) * part.global_columns + part.column);
    }
  return whole;
}

CompressedTraining judge_driven(harness::Judge& judge, harness::Context& context,
                                const TrainingConfig& config, const Corpus& corpus,
                                Trainer& trainer, const std::vector<JudgedStep>& steps,
                                const GradientSums& driving) {
  std::vector<bool> skipped;
  for (const JudgedStep& step : steps) skipped.push_back(step.skipped);
  const Driven driven = context.world.broadcast(
      context.group, 0, drive(context.world, context.group, config, corpus, driving, skipped));
  CompressedTraining training;
  compare(judge, config, trainer, steps, driven, training);
  return training;
}

}  // namespace suite

#include "suite/training_step/compressed_training.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "harness/judge/numerics.h"
#include "machine/device/random.h"
#include "suite/reference/compressed_sums.h"
#include "suite/training_step/loss_curve.h"
#include "suite/training_step/plain_reference.h"
#include "suite/training_step/reference.h"

namespace suite {

namespace {

using machine::Axis;
using machine::Dtype;
using Values = std::vector<double>;
using ByName = std::map<std::string, Values>;

// Roundings of float in the update of an element: moments, corrections, quotient, decay and value.
constexpr double update_roundings = 16;

// A rank's part of a parameter's gradients in a step.
struct Part {
  std::string name;
  std::int64_t row = 0, column = 0, columns = 0, global_columns = 0, global_size = 0;
  Values sums;  // compressed
  static auto members(auto& self) {
    return std::tie(self.name, self.row, self.column, self.columns, self.global_columns,
                    self.global_size, self.sums);
  }
};

// A rank's parameters in the judged training.
struct JudgedStep {
  double loss = 0, gradient_norm = 0;
  ByName gradients, values;  // gradients: before compression
};

// Returns the sums of a parameter's gradients before compression.
Values exact_gradient(const Trainer& trainer, const CompressedSums& sums,
                      const collectives::Parameter& parameter) {
  const zero::Layout& layout = trainer.states().layout();
  const std::int64_t begin =
      layout.offsets[static_cast<std::size_t>(trainer.states().row(&parameter))];
  for (std::size_t i = 0; i < layout.segments.size(); ++i) {
    const zero::Range range = layout.segments[i].range;
    if (begin < range.begin || begin >= range.end) continue;
    const auto from = sums.exact(i).begin() + (begin - range.begin);
    return {from, from + parameter.value.size()};
  }
  throw std::logic_error("no segment has " + parameter.name);
}

Part part_of(const Trainer& trainer, const collectives::Parameter& parameter) {
  const machine::Region region = parameter.region(trainer.grid().coordinate(Axis::tp));
  const bool vector = parameter.value.shape().rank() == 1;
  return {parameter.name,
          region.row,
          region.col,
          vector ? parameter.value.size() : parameter.value.cols(),
          region.global_cols,
          parameter.global_shape.size(),
          unscaled_gradient(trainer, parameter)};
}

// Joins the parts of all ranks. Replicas have the same part.
ByName joined(const std::vector<std::vector<Part>>& parts) {
  ByName whole;
  for (const std::vector<Part>& of_rank : parts)
    for (const Part& part : of_rank) {
      Values& values = whole[part.name];
      values.resize(static_cast<std::size_t>(part.global_size));
      const std::int64_t rows = std::ssize(part.sums) / part.columns;
      for (std::int64_t row = 0; row < rows; ++row)
        std::copy_n(part.sums.begin() + row * part.columns, part.columns,
                    values.begin() + (part.row + row) * part.global_columns + part.column);
    }
  return whole;
}

// Displaces every element by a few roundings of float, with random signs.
GradientSums displaced(const GradientSums& sums, int probe) {
  GradientSums all = sums;
  for (std::size_t step = 0; step < all.size(); ++step)
    for (auto& [name, values] : all[step]) {
      const std::uint64_t key = layers::random_key(
          static_cast<std::uint64_t>(1000 * probe) + static_cast<std::uint64_t>(step), name);
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] *= 1 + (machine::uniform(key, i) < 0.5 ? -1 : 1) * update_roundings *
                             unit_roundoff(Dtype::float32);
    }
  return all;
}

// The plain training and, of each step, the largest distances of the displaced ones from it.
struct Driven {
  std::vector<DrivenStep> exact;
  std::vector<std::map<std::string, double>> values;
  Values losses;
  static auto members(auto& self) { return std::tie(self.exact, self.values, self.losses); }
};

Driven drive(const TrainingConfig& config, const Corpus& corpus, const GradientSums& sums,
             const std::function<void()>& alive) {
  Driven driven{driven_history(config, corpus, sums, alive), {}, Values(sums.size())};
  driven.values.resize(sums.size());
  for (int probe = 1; probe <= probes; ++probe) {
    const std::vector<DrivenStep> other =
        driven_history(config, corpus, displaced(sums, probe), alive);
    for (std::size_t step = 0; step < sums.size(); ++step) {
      driven.losses[step] = std::max(
          driven.losses[step], probe_margin * std::abs(other[step].loss - driven.exact[step].loss));
      for (const auto& [name, values] : driven.exact[step].values) {
        double& most = driven.values[step][name];
        most = std::max(most, probe_margin * distance(values, other[step].values.at(name)));
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
    judge.numerics(
        fmt::format("norm of the compressed gradients of step {}", step + 1),
        std::abs(got.gradient_norm - want.gradient_norm),
        harness::gamma(2 * elements, unit_roundoff(Dtype::float64)) * want.gradient_norm);
    for (const collectives::Parameter* parameter : trainer.parameters()) {
      const std::string& name = parameter->name;
      judge.exact(name + " is trained", std::vector{got.gradients.contains(name) ? 1.0 : 0.0},
                  std::vector{want.gradients.contains(name) ? 1.0 : 0.0});
      if (want.gradients.contains(name)) {
        const Values& gradient = want.gradients.at(name);
        // Weights have the roundings of earlier updates too (4 * 1.03^depth: reference.h).
        const double depth = config.model.layers + 1 - parameter->layer;
        const double relative = gradient_epsilon(config, parameter->layer) +
                                4 * std::pow(1.03, depth) * 2 * number * master;
        judge.numerics(
            fmt::format("{}, raw gradient of step {} before compression", name, step + 1),
            distance(got.gradients.at(name), shard(gradient, *parameter, tp_rank)),
            relative * norm(gradient));
      }
      const Values& value = want.values.at(name);
      judge.numerics(fmt::format("{}, value after step {}", name, step + 1),
                     distance(got.values.at(name), shard(value, *parameter, tp_rank)),
                     driven.values[step].at(name) + (u + 2 * (number + 1) * master) * norm(value));
    }
  }
}

}  // namespace

bool compresses_gradients(const TrainingConfig& config) {
  return config.shards() > 1 && !config.zero.options.gradient_compression.algorithm.empty();
}

void add_compression_slices(harness::Sweep<TrainingCase>& sweep) {
  using enum harness::Profile;
  const auto coded = [&](const std::vector<std::string>& names, const char* batch) {
    return Variations{vary("model", {"tiny"}), vary("global-batch-size", {batch}),
                      vary("gradient-compression", names)};
  };
  const std::vector<std::string> all = zero::gradient_compressions();
  const auto over_dp = grids({3}, {1}, {1}, {3});
  const std::string name = "compressed gradients";
  sweep
      .slice({quick, smoke}, name,
             coded({"deviation"}, "8") + grids({4}, {2}, {1}, {2}) +
                 Variations{vary("sequence-parallel", {"on"}), vary("uneven-tokens", {"on"})})
      .slice({quick, smoke}, name, coded({"top_k"}, "8") + grids({4}, {1}, {2}, {2}))
      .slice({quick, smoke}, name,
             coded({"int8_block", "quantized_reduce_scatter", "half_wire"}, "6") + over_dp +
                 Variations{vary("zero-stage", {"0"})})
      .slice({quick, smoke}, name,
             coded({"top_k"}, "8") + grids({2}, {1}, {1}, {2}) +
                 Variations{vary("dtype", {"bfloat16"}), vary("offload_optimizer", {"cpu"})})
      .slice({acceptance, paper}, name,
             coded(all, "24") + grids({2, 3, 4, 8}, {1, 2}, {1, 2}, {1, 2, 3, 4}, {1, 2}) +
                 Variations{vary("zero-stage", {"0", "1"}), vary("dtype", {"float", "bfloat16"}),
                            vary("use-flash-attn", {"on"})});
}

CompressedTraining judge_compressed_training(harness::Judge& judge, harness::Context& context,
                                             const TrainingConfig& config, const Corpus& corpus,
                                             const std::function<void(Trainer&, int)>& after_step) {
  TrainingConfig watched = config;
  zero::GradientCompression& compression = watched.zero.options.gradient_compression;
  CompressedSums sums(judge, context.world,
                      machine::Grid(config.degrees, context.group.index).replica_group(),
                      compression);
  compression.watch = &sums;
  Trainer trainer(context.world, context.group, context.device, watched, corpus);
  const bool is_plain = why_not_plain(config).empty();
  const auto alive = [&] { context.world.board().mine().progress.fetch_add(1); };

  CompressedTraining training;
  std::vector<JudgedStep> mine;
  GradientSums whole;
  for (int step = 0; step < reference_steps; ++step) {
    JudgedStep& now = mine.emplace_back();
    trainer.forward_backward();
    now.loss = trainer.mean_loss();
    trainer.optimizer_step().reduce();
    if (is_plain) {
      trainer.optimizer_step().gather_gradients();
      std::vector<Part> parts;
      for (const collectives::Parameter* parameter : trainer.parameters()) {
        if (!parameter->gradient) continue;  // frozen
        now.gradients[parameter->name] = exact_gradient(trainer, sums, *parameter);
        parts.push_back(part_of(trainer, *parameter));
      }
      whole.push_back(joined(context.world.all_gather(context.group, parts)));
    }
    const zero::StepResult result = trainer.update();
    now.gradient_norm = result.gradient_norm;
    judge.exact(fmt::format("whether step {} is taken", step + 1),
                std::vector{result.updated ? 1.0 : 0.0}, std::vector{1.0});
    judge_replicas(judge, trainer, step + 1);
    if (is_plain)
      for (const collectives::Parameter* parameter : trainer.parameters())
        now.values[parameter->name] = to_doubles(parameter->value);
    after_step(trainer, step);
    alive();
  }
  if (!is_plain) {
    for (const JudgedStep& step : mine) std::get<0>(training).push_back(step.loss);
    return training;
  }
  const Driven driven = context.world.broadcast(
      context.group, 0, context.group.index == 0 ? drive(config, corpus, whole, alive) : Driven{});
  compare(judge, config, trainer, mine, driven, training);
  return training;
}

}  // namespace suite

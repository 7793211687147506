#include "suite/training_step/loss_curve.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "suite/training_step/step_oracles.h"

namespace suite {
namespace {

using harness::Oracle;

constexpr double largest = std::numeric_limits<double>::max();

bool is_skipped(const LossCurve& curve, int step) {
  return std::ranges::find(curve.skipped, step) != curve.skipped.end();
}

// Fails numerics for each number that is not finite. A step that float16 skips has no finite norm.
// Returns whether all are finite.
bool judge_finite(harness::Judge& judge, const TrainingConfig& config, const LossCurve& curve) {
  const bool may_overflow = config.precision.dtype == machine::Dtype::float16;
  bool all = true;
  const auto check = [&](const char* what, int step, double value) {
    if (std::isfinite(value)) return;
    judge.numerics(fmt::format("{} of step {}, which must be finite", what, step), value, largest);
    all = false;
  };
  for (std::size_t i = 0; i < curve.losses.size(); ++i) {
    const int step = static_cast<int>(i) + 1;
    check("loss", step, curve.losses[i]);
    if (!may_overflow || !is_skipped(curve, step))
      check("gradient norm", step, curve.gradient_norms[i]);
  }
  if (curve.skipped.size() < curve.losses.size())
    check("loss after step", static_cast<int>(curve.losses.size()), curve.again);
  return all;
}

bool learns(const TrainingConfig& config, std::size_t steps) {
  for (std::size_t step = 0; step < steps; ++step)
    if (config.learning_rate().after(static_cast<std::int64_t>(step)) > 0) return true;
  return false;
}

std::string steps_text(const std::vector<int>& steps) {
  return steps.empty() ? "no step" : fmt::format("steps {}", fmt::join(steps, ", "));
}

}  // namespace

LossCurve train(Trainer& trainer, int steps, const std::function<void(int)>& after_step) {
  LossCurve curve;
  for (int step = 1; step <= steps; ++step) {
    trainer.forward_backward();
    curve.losses.push_back(trainer.mean_loss());
    trainer.reduce();
    const zero::StepResult result = trainer.update();
    curve.gradient_norms.push_back(result.gradient_norm);
    if (!result.updated) curve.skipped.push_back(step);
    after_step(step);
  }
  trainer.forward_backward(0);
  curve.again = trainer.mean_loss();
  trainer.reduce();
  return curve;
}

void judge_replicas(harness::Judge& judge, Trainer& trainer, int step, std::string_view training) {
  trainer.with_each_part([&](const layers::Parameters& part) {
    for (const collectives::Parameter* parameter : part)
      judge.same_bits(fmt::format("{}{} after {}step {}", parameter->name,
                                  shard_text(*parameter, trainer), training, step),
                      hash(parameter->value));
  });
}

void judge_alone(harness::Judge& judge, const TrainingConfig& config, const LossCurve& curve) {
  if (!judge_finite(judge, config, curve)) return;
  const std::size_t steps = curve.losses.size();
  std::string fall = "no step is taken";
  if (curve.skipped.size() < steps && !learns(config, steps)) {
    fall = "the learning rate is 0";
  } else if (curve.skipped.size() < steps) {
    fall = fmt::format("the loss of the first step's tokens changes from {} to {} in {} steps",
                       curve.losses.front(), curve.again, steps);
    if (!(curve.again < curve.losses.front()))
      return judge.numerics(fmt::format("{}; it must fall", fall), curve.again,
                            std::nextafter(curve.losses.front(), 0.0));
  }
  judge.not_applicable(
      Oracle::numerics,
      fmt::format("--reference none compares no number; all are finite, and {}", fall));
}

void judge_stored(harness::Judge& judge, const TrainingConfig& config, const LossCurve& curve,
                  const StoredCurve& stored, const std::string& path) {
  if (!judge_finite(judge, config, curve)) return;
  if (curve.skipped != stored.skipped)
    return judge.not_applicable(
        Oracle::numerics,
        fmt::format("{} skips {}, and this run {}, so their losses belong to different steps", path,
                    steps_text(stored.skipped), steps_text(curve.skipped)));
  const double tolerance = stored.tolerance.at(std::string(machine::name(config.precision.dtype)));
  for (std::size_t i = 0; i < stored.losses.size(); ++i)
    judge.numerics(fmt::format("loss of step {} against {}", i + 1, path),
                   std::abs(curve.losses.at(i) - stored.losses[i]),
                   tolerance * std::abs(stored.losses[i]));
}

}  // namespace suite

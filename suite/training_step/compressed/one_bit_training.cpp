#include "suite/training_step/compressed/one_bit_training.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "harness/judge/numerics.h"
#include "suite/reference/one_bit_sums.h"
#include "suite/training_step/loss_curve.h"
#include "suite/training_step/plain_reference.h"
#include "suite/training_step/reference.h"
#include "suite/training_step/step_oracles.h"

namespace suite {
namespace {

using machine::Dtype;
using Values = std::vector<double>;

Values momentum_of(Trainer& trainer) {
  Values momentum;
  trainer.optimizer_step().optimizer().visit(false,
                                             [&](zero::Range, const zero::RangeStates& states) {
                                               momentum = to_doubles(states.first_moment);
                                             });
  return momentum;
}

// A step's gradients before they are summed over replicas, or after, if all replicas have the sums.
struct Gradients {
  std::vector<ValuesByName> of_replicas;
  ValuesByName sums;
  std::map<std::string, double> terms;  // of JudgedStep
};
Gradients gradients_of(const harness::Context& context, Trainer& trainer, bool own) {
  const TrainingConfig& config = trainer.config();
  const PartsByRank parts =
      gathered(context, trainer, [&](const collectives::Parameter& parameter) {
        return unscaled_gradient(trainer, parameter);
      });
  Gradients gradients;
  for (int replica = 0; replica < (own ? config.shards() : 1); ++replica) {
    PartsByRank of_replica;
    for (std::size_t rank = 0; rank < parts.size(); ++rank)
      if (!own ||
          machine::Grid(config.degrees, static_cast<int>(rank)).replica_group().index == replica)
        of_replica.push_back(parts[rank]);
    gradients.of_replicas.push_back(joined(of_replica));
    for (const auto& [name, values] : gradients.of_replicas.back()) {
      gradients.terms[name] += norm(values);
      Values& sum = gradients.sums[name];
      sum.resize(values.size());
      for (std::size_t i = 0; i < values.size(); ++i) sum[i] += values[i];
    }
  }
  return gradients;
}

// This rank's parts of whole sums.
ValuesByName parts_of(Trainer& trainer, const ValuesByName& whole) {
  ValuesByName parts;
  for (const collectives::Parameter* parameter : trainer.parameters())
    if (parameter->gradient)
      parts[parameter->name] = shard(whole.at(parameter->name), *parameter,
                                     trainer.grid().coordinate(machine::Axis::tp));
  return parts;
}

// Compares norm and factor with those of the gradients of all ranks, and returns this replica's
// factor.
double judge_norms(harness::Judge& judge, const std::string& step, const TrainingConfig& config,
                   const Gradients& gradients, double divisor, std::size_t replica,
                   const zero::StepResult& result) {
  const bool own = gradients.of_replicas.size() > 1;
  Values norms;
  double elements = 0;
  for (const ValuesByName& each : gradients.of_replicas) {
    double squares = 0;
    for (const auto& [name, values] : each) {
      squares += std::pow(norm(values), 2);
      elements += static_cast<double>(values.size());
    }
    norms.push_back(std::sqrt(squares) * (own ? config.shards() : 1) / divisor);
  }
  const double largest = std::ranges::max(norms), mine = norms[own ? replica : 0];
  const double rounding = harness::gamma(2 * elements, unit_roundoff(Dtype::float64));
  judge.numerics("largest norm of " + step, std::abs(result.gradient_norm - largest),
                 rounding * largest);
  const double clip = config.optimizer.clipping;
  const double factor = clip > 0 && mine > clip ? clip / mine : 1;
  judge.numerics("factor that clips " + step, std::abs(result.clip_factor - factor),
                 2 * rounding * factor);
  return factor;
}

// Returns for each element of the flat buffers the factor of its momentum before the sum. 1-bit
// LAMB gives all parameters of a segment the mean of their roots of the mean square. momentum: the
// last of the warm-up.
Values factors_of(const harness::Context& context, Trainer& trainer, const Values& momentum) {
  const zero::Layout& layout = trainer.states().layout();
  Values factors(momentum.size(), 1);
  if (trainer.config().optimizer.type != "one_bit_lamb") return factors;
  const auto offset = [&](const collectives::Parameter& parameter) {
    return layout.offsets[static_cast<std::size_t>(trainer.states().row(&parameter))];
  };
  const ValuesByName whole =
      joined(gathered(context, trainer, [&](const collectives::Parameter& parameter) {
        const auto begin = momentum.begin() + offset(parameter);
        return Values(begin, begin + parameter.value.size());
      }));
  for (const zero::Segment& segment : layout.segments) {
    double sum = 0, parameters = 0;
    const auto each = [&](const auto& call) {
      for (const collectives::Parameter* parameter : trainer.parameters()) {
        if (!parameter->gradient || offset(*parameter) < segment.range.begin ||
            offset(*parameter) >= segment.range.end)
          continue;
        const Values& values = whole.at(parameter->name);
        call(*parameter, norm(values) / std::sqrt(static_cast<double>(values.size())));
      }
    };
    each([&](const collectives::Parameter&, double root) {
      sum += root;
      ++parameters;
    });
    each([&](const collectives::Parameter& parameter, double root) {
      if (root > 0)
        std::fill_n(factors.begin() + offset(parameter), parameter.value.size(),
                    sum / parameters / root);
    });
  }
  return factors;
}

// momentum, gradient, factors: of this rank before the step, as in the flat buffers.
void judge_momentum(harness::Judge& judge, const std::string& step, const Trainer& trainer,
                    const OneBitSums& sums, const Values& momentum, const Values& gradient,
                    const Values& factors, double scale) {
  const auto& segments = trainer.states().layout().segments;
  const double beta1 = trainer.config().optimizer.betas[0];
  for (std::size_t i = 0; i < segments.size(); ++i) {
    Values expected, bounds;
    for (std::int64_t at = segments[i].range.begin; at < segments[i].range.end; ++at) {
      const auto element = static_cast<std::size_t>(at);
      const double factor = factors[element],
                   old = factor * beta1 / trainer.config().shards() * momentum[element],
                   more = factor * (1 - beta1) * scale * gradient[element];
      expected.push_back(old + more);
      // The constants, three products and a sum are rounded.
      bounds.push_back(harness::gamma(6, unit_roundoff(Dtype::float32)) *
                       (std::abs(old) + std::abs(more)));
    }
    judge.numerics(fmt::format("momentum of {}, segment {}", step, i), sums.momenta(i), expected,
                   bounds);
  }
}

}  // namespace

bool sums_momenta(const TrainingConfig& config) {
  return config.shards() > 1 && config.optimizer.is_one_bit();
}

void add_one_bit_slices(harness::Sweep<TrainingCase>& sweep) {
  using enum harness::Profile;
  // The warm-up of ten steps is short, so the variance must follow its gradients quickly. The keys'
  // biases have gradients of roundoffs: with a small epsilon the noise of codes would move them
  // far, and scores would lose their digits.
  const auto one_bit = [](const char* optimizer, const std::string& arguments) {
    return Variations{
        vary("model", {"tiny"}), vary("global-batch-size", {"8"}), vary("zero-stage", {"0"}),
        vary("optimizer", {optimizer}),
        vary("model-args", {"--adam-beta2 0.9 --adam-eps 1e-3 --freeze-step " + arguments})};
  };
  const std::string name = "momenta of 1 bit";
  sweep
      .slice({quick, smoke}, name,
             one_bit("one_bit_adam", "3 --clip-grad 0.5") + grids({4}, {2}, {1}, {2}) +
                 Variations{vary("sequence-parallel", {"on"}), vary("uneven-tokens", {"on"})})
      .slice({smoke}, name,
             one_bit("one_bit_adam", "4") + grids({4}, {1}, {2}, {2}) +
                 Variations{vary("dtype", {"half"}), vary("grad-accum-dtype", {"fp16"})})
      .slice({smoke}, name,
             one_bit("one_bit_lamb", "3") + grids({4}, {2}, {1}, {2}) +
                 Variations{vary("sequence-parallel", {"on"}), vary("uneven-tokens", {"on"})})
      .slice({smoke}, name,
             one_bit("one_bit_lamb", "2") + grids({4}, {1}, {2}, {2}) +
                 Variations{vary("dtype", {"bfloat16"}), vary("grad-accum-dtype", {"bf16"})});
  for (const char* optimizer : {"one_bit_adam", "one_bit_lamb"})
    sweep.slice(
        {acceptance, paper}, name,
        one_bit(optimizer, "4") + grids({1, 2, 4, 8}, {1, 2}, {1, 2}, {1, 2, 4}, {1, 2}) +
            Variations{vary("dtype", {"float", "bfloat16"}), vary("use-flash-attn", {"on"})});
}

CompressedTraining judge_one_bit_training(harness::Judge& judge, harness::Context& context,
                                          const TrainingConfig& config, const Corpus& corpus,
                                          const std::function<void(Trainer&, int)>& after_step) {
  const machine::Group replicas = machine::Grid(config.degrees, context.group).replica_group();
  const auto replica = static_cast<std::size_t>(replicas.index);
  OneBitSums sums(judge, context.world, replicas);
  TrainingConfig watched = config;
  watched.zero.options.gradient_compression.watch = &sums;
  Trainer trainer(context.world, context.group, context.device, watched, corpus);
  const zero::Layout& layout = trainer.states().layout();
  const bool is_plain = why_not_plain(config).empty();

  std::vector<JudgedStep> steps;
  GradientSums driving;
  std::int64_t updates = 0;
  Values factors;  // of momenta
  for (int at = 0; at < reference_steps; ++at) {
    const std::string step = fmt::format("step {}", at + 1);
    const bool frozen = updates >= config.optimizer.freeze_step;
    JudgedStep& now = steps.emplace_back();
    trainer.forward_backward();
    now.loss = trainer.mean_loss();
    trainer.reduce();
    now.skipped = gradients_overflow(trainer, context.world, context.group);
    const double divisor = trainer.optimizer_step().divisor(), loss_scale = trainer.loss_scale();
    const Values momentum = momentum_of(trainer),
                 gradient = to_doubles(trainer.states().gradients());
    if (frozen && factors.empty()) factors = factors_of(context, trainer, momentum);
    const Gradients gradients = is_plain ? gradients_of(context, trainer, frozen) : Gradients();
    now.gradients = is_plain ? parts_of(trainer, gradients.sums) : ValuesByName();
    now.terms = gradients.terms;
    const zero::StepResult result = trainer.update();
    judge.exact(fmt::format("whether {} is taken", step), std::vector{result.updated ? 1.0 : 0.0},
                std::vector{now.skipped ? 0.0 : 1.0});
    updates += now.skipped ? 0 : 1;
    double factor = result.clip_factor;
    if (is_plain && !now.skipped)
      factor = judge_norms(judge, step, config, gradients, divisor, replica, result);
    if (frozen && !now.skipped)
      judge_momentum(judge, step, trainer, sums, momentum, gradient, factors,
                     factor / (divisor * loss_scale));
    if (is_plain && frozen) {
      const Values summed = momentum_of(trainer);
      driving.push_back(
          joined(gathered(context, trainer, [&](const collectives::Parameter& parameter) {
            const auto begin =
                summed.begin() +
                layout.offsets[static_cast<std::size_t>(trainer.states().row(&parameter))];
            return Values(begin, begin + parameter.value.size());
          })));
    } else if (is_plain) {
      driving.push_back(gradients.sums);
    }
    judge_replicas(judge, trainer, at + 1);
    if (is_plain)
      for (const collectives::Parameter* parameter : trainer.parameters())
        now.values[parameter->name] = to_doubles(parameter->value);
    after_step(trainer, at);
    context.world.board().mine().progress.fetch_add(1);
  }
  if (is_plain) return judge_driven(judge, context, config, corpus, trainer, steps, driving);
  CompressedTraining training;
  for (const JudgedStep& step : steps) std::get<0>(training).push_back(step.loss);
  return training;
}

void judge_one_bit_phases(harness::Judge& judge, harness::Context& context,
                          const TrainingConfig& config, const Corpus& corpus) {
  const std::int64_t freeze_step = config.optimizer.freeze_step;
  if (freeze_step >= reference_steps) return;
  machine::Ledger& ledger = context.device.ledger();
  CategoryPeaks before, peaks;
  for (const machine::Category category : machine::all_categories)
    before[category] = ledger.current(category);
  Trainer trainer(context.world, context.group, context.device, config, corpus);
  before[machine::Category::links] = ledger.current(machine::Category::links);
  const auto updates = [&] { return trainer.optimizer_step().optimizer().steps(); };
  if (!take_step(trainer, [] {})) return;
  if (updates() < freeze_step) judge_volume(judge, trainer);
  while (updates() <= freeze_step)
    if (!take_step(trainer, [] {})) return;
  if (!take_step(trainer, [&] { ledger.reset_peaks(); })) return;
  for (const machine::Category category : machine::all_categories)
    peaks[category] = ledger.peak(category) - before[category];
  judge_memory(judge, trainer, peaks, trainer.routed_rows(), updates() - 1);
  judge_volume(judge, trainer);
}

}  // namespace suite

#include "suite/training_step/reference.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

#include "harness/judge/numerics.h"
#include "machine/device/random.h"
#include "suite/configuration/keys.h"
#include "suite/reference/first_step.h"
#include "suite/reference/gradient_terms.h"
#include "suite/training_step/reference_runs.h"

namespace suite {

namespace {

using machine::Dtype;

// Returns the optimizer of the first update.
zero::Rule first_rule(const TrainingConfig& config) {
  zero::Rule rule = config.optimizer.rule();
  const double rate = config.learning_rate().after(0);
  std::visit([&](auto& options) { options.learning_rate = rate; }, rule);
  return rule;
}

Reference make_reference(machine::World& world, const TrainingConfig& config, const Corpus& corpus,
                         const SkippedSteps& skipped, ReferenceRuns runs) {
  // Probes are compared with a run of the same code, so that an error of this code does not widen
  // the bounds.
  const History& undisturbed = runs.undisturbed;
  Reference reference;
  reference.exact = runs.plain.losses.empty() ? undisturbed : runs.plain;
  reference.exact.magnitudes = undisturbed.magnitudes;
  for (auto& [name, exact] : reference.exact.parameters)
    exact.layer = undisturbed.parameters.at(name).layer;
  reference.same = std::move(runs.same);
  Bounds& bounds = reference.bounds;
  bounds.losses.assign(reference_steps, 0);
  bounds.logits.assign(reference_steps, 0);
  for (const History& disturbed : runs.disturbed) {
    for (const auto& [name, exact] : undisturbed.parameters) {
      const ParameterHistory& other = disturbed.parameters.at(name);
      ParameterBounds& bound = bounds.parameters[name];
      bound.after_all =
          std::max(bound.after_all, probe_margin * distance(exact.after_all, other.after_all));
      if (config.optimizer.type == "adafactor")
        bound.after_one =
            std::max(bound.after_one, probe_margin * distance(exact.after_one, other.after_one));
    }
    for (std::size_t step = 0; step < reference_steps; ++step) {
      bounds.losses[step] =
          std::max(bounds.losses[step],
                   probe_margin * std::abs(disturbed.losses[step] - undisturbed.losses[step]));
      bounds.logits[step] =
          std::max(bounds.logits[step],
                   probe_margin * distance(disturbed.logits[step], undisturbed.logits[step]));
    }
  }
  // Stored values have one more rounding than the master copy, which is rounded once per step.
  const double u = unit_roundoff(config.precision.dtype);
  const double master = std::min(u, unit_roundoff(Dtype::float32));
  const auto norm_of = [&](const std::string& name) {
    const std::vector<double>& gradient = reference.exact.parameters.at(name).first_gradient;
    if (!gradient.empty()) return norm(gradient);
    TrainingConfig whole = config;  // Terms have a size even if their parameter is frozen.
    whole.frozen.clear();
    const auto skips = static_cast<std::size_t>(first_taken(skipped));
    return norm(first_step_of(world, whole, corpus, skips).gradients.at(name));
  };
  for (const auto& [name, exact] : reference.exact.parameters) {
    ParameterBounds& bound = bounds.parameters[name];
    const double size = norm(exact.first_gradient);  // 0 if the parameter is frozen
    if (!exact.first_gradient.empty())
      bound.first_gradient =
          gradient_epsilon(config, exact.layer) * size_of_terms(name, config.model.layers, norm_of);
    const double relative = size > 0 ? bound.first_gradient / size : gradient_epsilon(config);
    std::vector<double> gradient = exact.first_gradient;
    for (double& value : gradient) value *= reference.exact.gradient_factor;
    // The clip factor has the relative error of the norm, at most that of the worst gradient.
    // A small row of a matrix may change without limit, so Adafactor's bound is that of the probes.
    if (config.optimizer.type != "adafactor")
      bound.after_one = first_step_bound(
          first_rule(config), gradient, relative, gradient_epsilon(config),
          undisturbed.parameters.at(name).first_norm, undisturbed.parameters.at(name).matrix);
    bound.after_all = std::max(bound.after_all, bound.after_one);  // a changed sign may stay
    // Lion's steps have one size. If an element turns back, rounding may turn it a step earlier or
    // later.
    if (config.optimizer.type == "lion")
      bound.after_all +=
          2 * config.optimizer.learning_rate * std::sqrt(undisturbed.parameters.at(name).turns);
    bound.after_one += (u + 2 * master) * norm(exact.after_one);
    bound.after_all += (u + 2 * reference_steps * master) * norm(exact.after_all);
  }
  // The loss is the output of the last layer, so the error of the whole forward bounds it.
  for (std::size_t step = 0; step < reference_steps; ++step) {
    bounds.losses[step] += loss_epsilon(config) * std::abs(reference.exact.losses[step]);
    bounds.logits[step] += loss_epsilon(config) * norm(reference.exact.logits[step]);
  }
  return reference;
}

}  // namespace

int first_taken(const SkippedSteps& skipped) {
  return static_cast<int>(std::ranges::find(skipped, false) - skipped.begin());
}

std::unique_ptr<RangeDevice> range_device(machine::World& world, const TrainingConfig& config) {
  return config.precision.dtype == Dtype::float16
             ? std::make_unique<RangeDevice>(world.host_device().threads())
             : nullptr;
}

void make_overflow(Trainer& trainer) {
  for (const collectives::Parameter* parameter : trainer.parameters()) {
    if (!parameter->gradient) continue;  // frozen; a stage may have no other
    parameter->gradient.device().stream().kernels().fill(parameter->gradient,
                                                         std::numeric_limits<double>::infinity());
    return;
  }
}

std::unique_ptr<Trainer> reference_trainer(machine::World& world, TrainingConfig config,
                                           const Corpus& corpus, Dtype dtype,
                                           machine::Device* device) {
  const RangeDevice::InHalf halves = in_half(config);
  config.degrees = {};
  config.tensor_grid = {};
  config.expert_parallel = 1;
  config.expert_tensor_parallel.reset();
  config.zero.communication_data_type.clear();
  if (dtype != config.precision.dtype) {
    config.zero.grad_accum_dtype.clear();
    config.precision.loss_scale = zero::usual_options(zero::LossScaling::constant);
  } else if (dtype == Dtype::float16) {
    config.precision.loss_scale.initial_scale /= 2;
    config.precision.loss_scale.min_scale /= 2;
  }
  config.precision.dtype = dtype;
  if (dtype == Dtype::float64) config.fp8 = {};
  // The first step has no codes of an earlier one.
  if (dtype == Dtype::float64 && config.optimizer.is_8bit()) config.optimizer.type = "adamw";
  config.pipeline.schedule = "1f1b";
  config.pipeline.virtual_stages = 1;
  config.zero.stage = 0;
  config.zero.options.offload_param = {};  // only ZeRO stage 3 supports it
  config.zero.options.gradient_compression = {};
  config.zero.options.plus_plus = {};
  config.activations = {};
  config.context = {};
  config.transport = machine::Transport::shared_memory;
  config.graph = false;
  config.algorithms = {};
  const machine::Group alone{"reference", {world.rank()}, 0};
  auto trainer = std::make_unique<Trainer>(world, alone, device ? *device : world.host_device(),
                                           config, corpus);
  if (auto* const range = dynamic_cast<RangeDevice*>(device))
    for (const collectives::Parameter* parameter : trainer->parameters())
      if (parameter->gradient) range->watch_gradient(parameter->gradient, halves);
  return trainer;
}

std::vector<double> unscaled_gradient(const Trainer& trainer,
                                      const collectives::Parameter& parameter) {
  if (!parameter.gradient) return {};
  std::vector<double> gradient = to_doubles(parameter.gradient);
  for (double& value : gradient) value /= trainer.loss_scale();
  return gradient;
}

void compare_parameter(harness::Judge& judge, const collectives::Parameter& parameter,
                       const ParameterHistory& got, const Reference& reference, int first,
                       int tp_rank) {
  const ParameterBounds& bound = reference.bounds.parameters.at(parameter.name);
  for (const bool exact : {true, false}) {
    const ParameterHistory& want =
        (exact ? reference.exact : reference.same).parameters.at(parameter.name);
    // The difference of two inexact runs has the errors of both.
    const double slack = exact ? 1 : 2;
    const auto check = [&](std::string_view what, const std::vector<double>& values,
                           const std::vector<double>& whole, double distance_bound) {
      judge.numerics(
          fmt::format("{}, {} against {}", parameter.name, what, exact ? "double" : "degree 1"),
          distance(values, shard(whole, parameter, tp_rank)), slack * distance_bound);
    };
    if (first <= reference_steps) {
      judge.exact(parameter.name + " has a gradient",
                  std::vector{got.first_gradient.empty() ? 0.0 : 1.0},
                  std::vector{want.first_gradient.empty() ? 0.0 : 1.0});
      if (want.first_gradient.empty())  // frozen
        judge.exact(parameter.name + " stays", got.after_all, got.after_one);
      else
        check(fmt::format("raw gradient of step {}", first), got.first_gradient,
              want.first_gradient, bound.first_gradient);
      check(fmt::format("value after step {}", first), got.after_one, want.after_one,
            bound.after_one);
    }
    check("value after 10 steps", got.after_all, want.after_all, bound.after_all);
  }
}

namespace {

// The hidden layer of an encoder's head counts as a layer.
int layers_of(const TrainingConfig& config) {
  return config.model.layers + (config.model.encoder() ? 1 : 0);
}

double forward_epsilon(const TrainingConfig& config, Dtype dtype, int depth) {
  const auto longest =
      static_cast<double>(std::max({std::int64_t{config.model.inner()},
                                    std::int64_t{config.model.vocabulary}, config.tokens()}));
  return harness::norm_bound(dtype, depth, longest);
}

// Half a step of a code in 8 bits is 1/254 of the largest value, about bfloat16's roundoff.
double codes_epsilon(const TrainingConfig& config, int depth) {
  const bool coded = config.shards() > 1 && config.zero.options.plus_plus.quantized_weights;
  return coded ? forward_epsilon(config, Dtype::bfloat16, depth) : 0;
}

}  // namespace

double loss_epsilon(const TrainingConfig& config) {
  const Dtype dtype = config.fp8.on() ? Dtype::float8_e4m3 : config.precision.dtype;
  const int depth = layers_of(config) + 1;
  return forward_epsilon(config, dtype, depth) + codes_epsilon(config, depth);
}

double gradient_epsilon(const TrainingConfig& config, int layer) {
  const int depth = layers_of(config) + 1 - layer;
  const Dtype sums = config.gradient_dtype();
  const Dtype wire = config.step_options().communication_data_type.value_or(sums);
  double in_sums = 0, on_wire = 0;
  const double micro_batches =
      static_cast<double>(config.batch.global_batch_size) / config.batch.micro_batch_size;
  if (size_of(sums) == 2) {
    double roundings = 3 * micro_batches + 3;
    if (layer == 0) roundings += static_cast<double>(config.tokens());
    in_sums = std::sqrt(roundings) * machine::unit_roundoff(sums);
  }
  if (config.most_shards() > 1 && wire != sums && size_of(wire) == 2)
    on_wire = std::sqrt(micro_batches + 1) * machine::unit_roundoff(wire);
  // Half a step of a code in 4 bits is 1/14 of the largest gradient of a block.
  if (config.shards() > 1 && config.zero.options.plus_plus.quantized_gradients)
    on_wire += std::sqrt(2) / 14;
  constexpr double k = 4, c = 1.03;
  const Dtype dtype = config.fp8.format == layers::Fp8Format::hybrid ? Dtype::float8_e5m2
                      : config.fp8.on()                              ? Dtype::float8_e4m3
                                                                     : config.precision.dtype;
  return forward_epsilon(config, dtype, depth) + codes_epsilon(config, depth) +
         k * std::pow(c, depth) * (in_sums + on_wire);
}

std::vector<double> logits_of(const StepRouting& routing) {
  std::vector<double> all;
  for (const std::vector<layers::RoutingRecord>& micro_batch : routing)
    for (const layers::RoutingRecord& record : micro_batch)
      all.insert(all.end(), record.logits.begin(), record.logits.end());
  return all;
}

Reference reference_of(machine::World& world, const machine::Group& group,
                       const TrainingConfig& config, const Corpus& corpus,
                       const SkippedSteps& skipped, const TrainingRouting& routing) {
  static std::map<std::string, Reference> kept;  // rank 0's
  std::string key;
  const bool first = group.index == 0;
  if (first) key = what_is_trained(config, corpus) + " " + what_is_decided(skipped, routing);
  if (!world.broadcast(group, 0, first && kept.contains(key))) {
    ReferenceRuns runs = reference_runs(world, group, config, corpus, skipped, routing);
    if (first) kept[key] = make_reference(world, config, corpus, skipped, std::move(runs));
  }
  return world.broadcast(group, 0, first ? kept.at(key) : Reference{});
}

const FirstStep& first_step_of(machine::World& world, const TrainingConfig& config,
                               const Corpus& corpus, std::size_t skipped_steps,
                               const TrainingRouting& routing) {
  static std::string kept_key;
  static FirstStep kept;
  const std::string key = fmt::format("{} {} {}", what_is_trained(config, corpus), skipped_steps,
                                      what_is_decided({}, routing));
  if (key == kept_key) return kept;
  kept_key.clear();
  kept = {};
  const std::unique_ptr<RangeDevice> range = range_device(world, config);
  const std::unique_ptr<Trainer> trainer =
      reference_trainer(world, config, corpus, Dtype::float64, range.get());
  for (std::size_t step = 0; step <= skipped_steps; ++step) {
    world.board().mine().progress.fetch_add(1);  // shows that this rank works and does not hang
    if (!routing.empty()) trainer->give_routing(routing[step]);
    trainer->forward_backward();
    kept.loss = trainer->mean_loss();
    trainer->reduce();
    if (range) kept.magnitudes.push_back(range->take());
    if (step == skipped_steps) break;
    make_overflow(*trainer);
    trainer->update();
  }
  for (const collectives::Parameter* parameter : trainer->parameters())
    if (parameter->gradient)
      kept.gradients.emplace(parameter->name, to_doubles(parameter->gradient));
  kept_key = key;
  return kept;
}

}  // namespace suite

#include "suite/training_step/reference_runs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "layers/models/gpt_cost.h"
#include "machine/device/random.h"
#include "suite/configuration/keys.h"
#include "suite/reference/gradient_terms.h"
#include "suite/training_step/plain_reference.h"
#include "suite/training_step/shared_runs.h"

namespace suite {

namespace {

using machine::Dtype;

constexpr double most_together = 4 << 20;  // parameters

// Displaces a gradient by `size` in the 2-norm, in a direction drawn from the seed. A gradient of
// zeros stays.
void displace(const machine::Tensor& gradient, double size, std::uint64_t seed) {
  std::vector<double> values = to_doubles(gradient), direction(values.size());
  for (std::size_t i = 0; i < direction.size(); ++i) {
    const auto words = machine::philox(seed, i);  // a sum of four uniforms is nearly normal
    direction[i] = (static_cast<double>(words[0]) + words[1] + words[2] + words[3]) * 0x1p-32 - 2;
  }
  const double scale = norm(direction) > 0 && norm(values) > 0 ? size / norm(direction) : 0;
  for (std::size_t i = 0; i < values.size(); ++i) values[i] += scale * direction[i];
  from_doubles(gradient, values);
}

// The values before an update and the signs of the last one.
struct Updates {
  std::vector<double> values;
  std::vector<bool> grew;
};

// Counts the elements that turn back, after a step. Decay alone turns none: it is far smaller than
// a step.
void count_turns(Trainer& trainer, std::map<std::string, Updates>& updates, History& history) {
  for (const collectives::Parameter* parameter : trainer.parameters()) {
    const std::vector<double> now = to_doubles(parameter->value);
    Updates& last = updates[parameter->name];
    std::vector<bool> grew(now.size());
    for (std::size_t i = 0; i < now.size() && !last.values.empty(); ++i) {
      grew[i] = now[i] > last.values[i];
      if (!last.grew.empty() && grew[i] != last.grew[i])
        ++history.parameters[parameter->name].turns;
    }
    if (!last.values.empty()) last.grew = grew;
    last.values = now;
  }
}

zero::MatrixRow matrix_of(const Trainer& trainer, const collectives::Parameter& parameter) {
  const auto& rows = trainer.plan().rows;
  return std::ranges::find(rows, parameter.name, &zero::GradientRow::parameter)->matrix;
}

// Trains the model. probe 0 is not disturbed.
History train(machine::World& world, const TrainingConfig& judged, const Corpus& corpus,
              Dtype dtype, int probe, const SkippedSteps& skipped, const TrainingRouting& routing) {
  const std::unique_ptr<RangeDevice> range =
      dtype == Dtype::float64 && probe == 0 ? range_device(world, judged) : nullptr;
  const std::unique_ptr<Trainer> made =
      reference_trainer(world, judged, corpus, dtype, range.get());
  Trainer& trainer = *made;
  History history;
  std::map<std::string, Updates> updates;
  const int first = first_taken(skipped);
  for (int step = 0; step < reference_steps; ++step) {
    world.board().mine().progress.fetch_add(1);  // shows that this rank works and does not hang
    if (!routing.empty()) trainer.give_routing(routing[static_cast<std::size_t>(step)]);
    trainer.forward_backward();
    history.losses.push_back(trainer.mean_loss());
    history.logits.push_back(logits_of(trainer.routing()));
    trainer.reduce();
    if (range) history.magnitudes.push_back(range->take());
    const bool skips = skipped[static_cast<std::size_t>(step)];
    if (skips) make_overflow(trainer);
    if (step == first)
      for (const collectives::Parameter* parameter : trainer.parameters()) {
        ParameterHistory& mine = history.parameters[parameter->name];
        mine.layer = parameter->layer;
        mine.first_gradient = unscaled_gradient(trainer, *parameter);
        mine.first_norm = norm(to_doubles(parameter->value));
        mine.matrix = matrix_of(trainer, *parameter);
      }
    if (probe > 0 && !skips) {
      std::map<std::string, double> sizes;
      for (const collectives::Parameter* parameter : trainer.parameters())
        if (parameter->gradient)  // not frozen
          sizes[parameter->name] = norm(to_doubles(parameter->gradient));
      for (const collectives::Parameter* parameter : trainer.parameters()) {
        if (!parameter->gradient) continue;
        const double terms = size_of_terms(parameter->name, judged.model.layers,
                                           [&](const std::string& name) { return sizes[name]; });
        displace(
            parameter->gradient, gradient_epsilon(judged, parameter->layer) * terms,
            layers::random_key(static_cast<std::uint64_t>(1000 * probe + step), parameter->name));
      }
    }
    const zero::StepResult result = trainer.update();
    if (step == first) {
      history.gradient_norm = result.gradient_norm;
      history.gradient_factor = result.clip_factor / trainer.optimizer_step().divisor();
    }
    if (judged.optimizer.type == "lion" && !skips) count_turns(trainer, updates, history);
    for (const collectives::Parameter* parameter : trainer.parameters()) {
      ParameterHistory& mine = history.parameters[parameter->name];
      if (step == first) mine.after_one = to_doubles(parameter->value);
      if (step + 1 == reference_steps) mine.after_all = to_doubles(parameter->value);
    }
  }
  return history;
}

// Returns the plain run, which is the same in every dtype, and is kept for the next one. Only one
// rank at a time makes plain runs.
const History& plain_run(machine::World& world, TrainingConfig config, const Corpus& corpus,
                         const SkippedSteps& skipped, const TrainingRouting& routing) {
  static std::map<std::string, History> kept;
  config.precision = {};
  config.zero.grad_accum_dtype.clear();
  config.zero.communication_data_type.clear();
  config.zero.options.plus_plus = {};
  const std::string key = what_is_trained(config, corpus) + " " + what_is_decided(skipped, routing);
  const auto [found, fresh] = kept.try_emplace(key);
  if (fresh)
    found->second = plain_history(
        config, corpus, skipped, [&] { world.board().mine().progress.fetch_add(1); }, routing);
  return found->second;
}

}  // namespace

RangeDevice::InHalf in_half(const TrainingConfig& config) {
  using enum RangeDevice::InHalf;
  if (config.gradient_dtype() == Dtype::float16) return sum;
  if (config.most_shards() == 1 || config.step_options().communication_data_type != Dtype::float16)
    return nothing;
  // From ZeRO stage 2 on each micro-batch is sent.
  return config.zero.stage >= 2 && config.micro_batches() > 1 ? parts : sum;
}

std::string what_is_trained(TrainingConfig config, const Corpus& corpus) {
  const bool delayed = config.zero.options.offload_optimizer.is_delayed();
  const std::string sums = config.zero.grad_accum_dtype;
  const std::string wire = config.most_shards() > 1 ? config.zero.communication_data_type : "";
  const zero::PlusPlusOptions plus_plus = config.zero.options.plus_plus;
  const bool codes = config.shards() > 1;
  const RangeDevice::InHalf halves = in_half(config);
  config.degrees = {};
  config.tensor_grid = {};
  config.expert_parallel = 1;
  config.expert_tensor_parallel.reset();
  config.pipeline = {};
  config.activations = {};
  config.context = {};
  config.zero = {};
  config.zero.options.offload_optimizer.cpu.delayed_update = delayed;
  config.zero.grad_accum_dtype = sums;
  config.zero.communication_data_type = wire;
  config.zero.options.plus_plus.quantized_weights = codes && plus_plus.quantized_weights;
  config.zero.options.plus_plus.quantized_gradients = codes && plus_plus.quantized_gradients;
  config.transport = {};
  config.graph = false;
  config.algorithms = {};
  std::string text =
      fmt::format("{} {} {} {} {} {}", corpus.size(), corpus.source(), config.weights,
                  config.model.vocabulary, config.model.sequence, static_cast<int>(halves));
  for (const configuration::Key& key : configuration::keys())
    if (key.field) text += " " + key.field(config).text();
  return text;
}

std::string what_is_decided(const SkippedSteps& skipped, const TrainingRouting& routing) {
  std::uint64_t all = 0;
  const auto add = [&](const std::vector<std::int32_t>& values) {
    for (const std::int32_t value : values)
      all = (all ^ static_cast<std::uint32_t>(value)) * 0x100000001b3u;
  };
  for (const StepRouting& step : routing)
    for (const std::vector<layers::RoutingRecord>& micro_batch : step)
      for (const layers::RoutingRecord& record : micro_batch) {
        add(record.chosen);
        add(record.choices);
      }
  return fmt::format("{} {}", fmt::join(skipped, ""), all);
}

ReferenceRuns reference_runs(machine::World& world, const machine::Group& group,
                             const TrainingConfig& config, const Corpus& corpus,
                             const SkippedSteps& skipped, const TrainingRouting& routing) {
  const bool is_plain = why_not_plain(config).empty();
  const auto training = [&](Dtype dtype, int probe) {
    return
        [&, dtype, probe] { return train(world, config, corpus, dtype, probe, skipped, routing); };
  };
  // The first one is rank 0's, because a message leaves out its matrices. The plain loops take
  // twice as long as a run in double. In this order two cores have equal work.
  std::vector<std::function<History()>> runs{training(Dtype::float64, 0)};
  runs.emplace_back(
      [&] { return is_plain ? plain_run(world, config, corpus, skipped, routing) : History(); });
  runs.emplace_back(training(Dtype::float64, 1));
  runs.emplace_back(training(config.precision.dtype, 0));
  for (int probe = 2; probe <= probes; ++probe) runs.emplace_back(training(Dtype::float64, probe));

  // Each run holds the whole model in double. Large models are trained one after another.
  const bool together = layers::parameters_count(config.model) <= most_together;
  std::vector<History> made = shared_runs(world, group, together ? group.size() : 1, runs);
  ReferenceRuns result{
      std::move(made[0]), std::move(made[1]), std::move(made[3]), {std::move(made[2])}};
  for (int probe = 2; probe <= probes; ++probe)
    result.disturbed[static_cast<std::size_t>(probe) - 1] =
        std::move(made[static_cast<std::size_t>(probe) + 2]);
  return result;
}

}  // namespace suite

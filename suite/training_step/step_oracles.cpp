#include "suite/training_step/step_oracles.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "suite/trainer/expectations.h"
#include "suite/training_step/reference.h"

namespace suite {

using harness::Oracle;
using machine::Axis;
using machine::Category;

namespace {

constexpr int most_steps = 64;
constexpr const char* none_taken = "every step was skipped, because its gradients overflow";

}  // namespace

bool take_step(Trainer& trainer, const std::function<void()>& begin) {
  for (int step = 0; step < most_steps; ++step) {
    begin();
    if (trainer.step().updated) return true;
    if (trainer.config().precision.loss_scale.scaling == zero::LossScaling::constant) break;
  }
  return false;
}

void judge_memory(harness::Judge& judge, const Trainer& trainer, const CategoryPeaks& peaks,
                  const RoutedRows& rows, std::int64_t updates) {
  if (peaks.empty()) return judge.not_applicable(Oracle::memory, none_taken);
  // Reads ZeRO's buckets, the schedule's actions and the rounds of plans.
  judge.shares_reference(Oracle::memory);
  const TrainingConfig& config = trainer.config();
  const std::string& sums = config.zero.grad_accum_dtype;
  const std::size_t width = sums == "fp16" || sums == "bf16"                    ? 2
                            : config.precision.dtype == machine::Dtype::float64 ? 8
                                                                                : 4;
  judge.memory("one gradient", Category::gradients, size_of(trainer.plan().gradient_dtype), width);
  for (const auto& [category, bytes] : expected_peaks(trainer, rows, updates))
    judge.memory(category, peaks.at(category), bytes);
  if (const machine::Device* host = trainer.activations_host()) {
    const PassagePeaks::Host expected = passage_peaks(trainer).host;
    for (const Category category : machine::all_categories)
      judge.memory("in host memory", category, host->ledger().peak(category),
                   category == Category::activations ? expected.activations
                   : category == Category::buffers   ? expected.buffers
                                                     : 0);
  }
  const zero::ExpectedMemory states = expected_states(trainer, updates);
  if (const machine::Device* const codes = trainer.optimizer_step().compression_host())
    judge.memory("residuals and codes", Category::buffers, codes->ledger().peak(),
                 states.compression);
  const machine::Device* const host = trainer.optimizer_step().host();
  if (!host) return;
  for (const auto& [category, bytes] : {std::pair{Category::parameters, states.host_parameters},
                                        {Category::optimizer, states.host_optimizer},
                                        {Category::buffers, states.host_buffers}})
    judge.memory("by the host", category, host->ledger().peak(category), bytes);
}

std::map<std::string, std::uint64_t> judge_volume(harness::Judge& judge, Trainer& trainer) {
  layers::Checkpoints::Moved before{};
  layers::HostCopies chunks;
  zero::OffloadTraffic offloaded;
  const auto begin = [&] {
    trainer.optimizer_step().wait_for_values();
    for (const Trainer::Group& group : trainer.groups())
      for (machine::Link* link : group.links()) link->reset_traffic();
    before = trainer.checkpoints_moved();
    chunks = trainer.chunks_copied();
    offloaded = trainer.optimizer_step().moved();
  };
  if (!take_step(trainer, begin)) {
    judge.not_applicable(Oracle::volume, none_taken);
    return {};
  }
  trainer.optimizer_step().wait_for_values();
  if (trainer.activations_host()) {
    const machine::TrafficLabel label{machine::Operation::none, trainer.config().precision.dtype};
    const layers::Checkpoints::Moved now = trainer.checkpoints_moved();
    const PassagePeaks expected = passage_peaks(trainer);
    judge.volume("checkpoints to the host", label, now.down - before.down,
                 expected.checkpoints_each_way);
    judge.volume("checkpoints from the host", label, now.up - before.up,
                 expected.checkpoints_each_way);
    const layers::HostCopies copied = trainer.chunks_copied() - chunks;
    judge.volume("chunks to the host", label, copied.to_host, expected.chunks.to_host);
    judge.volume("chunks from the host", label, copied.to_device, expected.chunks.to_device);
  }
  if (trainer.optimizer_step().host()) {
    const zero::OffloadTraffic moved = trainer.optimizer_step().moved() - offloaded,
                               all = expected_offload_traffic(trainer);
    const machine::TrafficLabel values{machine::Operation::none, trainer.config().precision.dtype},
        states{machine::Operation::none, trainer.plan().gradient_dtype};
    judge.volume("device to host", states, moved.down, all.down);
    judge.volume("host to device", values, moved.up, all.up);
    judge.volume("file to host", states, moved.nvme_read, all.nvme_read);
    judge.volume("host to file", states, moved.nvme_written, all.nvme_written);
  }
  judge.shares_reference(Oracle::volume);  // reads ZeRO's buckets
  auto expected = expected_traffic(trainer);
  const std::vector<std::string> by_library = groups_by_library(trainer);
  if (!by_library.empty())
    judge.not_applicable(Oracle::volume, "the library does not count the bytes that it sends");
  std::map<std::string, std::uint64_t> sent;
  for (const Trainer::Group& group : trainer.groups()) {
    std::map<machine::TrafficLabel, machine::Traffic> measured;
    for (machine::Link* link : group.links())
      for (const auto& [label, traffic] : link->traffic()) measured[label] += traffic;
    for (const auto& [label, traffic] : measured) sent[group.name] += traffic.bytes_sent;
    auto& labels = expected[group.name];
    // Bytes of a plan that runs in place of the library are unexpected.
    for (const auto& [label, traffic] : measured)
      if (traffic != machine::Traffic{}) labels.try_emplace(label);
    for (const auto& [label, traffic] : labels) {
      const bool nothing = traffic == machine::Traffic{} && measured[label] == traffic;
      // "Nothing sent" would hide that the library sends all bytes.
      if (!nothing || by_library.empty()) judge.volume(group.name, label, measured[label], traffic);
    }
  }
  return sent;
}

void judge_schedule(harness::Judge& judge, const Trainer& trainer) {
  const TrainingConfig& config = trainer.config();
  const int stage = trainer.grid().coordinate(Axis::pp);
  const pipeline::Timeline& timeline = trainer.timeline();
  const pipeline::Schedule& schedule = pipeline::find_schedule(config.pipeline.schedule);
  const pipeline::Size size = pipeline_size(config);
  judge.schedule(fmt::format("{}, stage {}", config.pipeline.schedule, stage),
                 pipeline::executed(timeline.events), text(schedule.stage(stage, size)));
  judge.schedule("micro-batches in flight", timeline.peak_in_flight, schedule.peak(stage, size));
}

bool gradients_overflow(Trainer& trainer, machine::World& world, const machine::Group& group) {
  if (trainer.config().precision.dtype != machine::Dtype::float16) return false;
  trainer.optimizer_step().gather_gradients();
  const auto overflows = [](const collectives::Parameter* parameter) {
    if (!parameter->gradient) return false;  // frozen
    return !std::ranges::all_of(to_doubles(parameter->gradient),
                                [](double value) { return std::isfinite(value); });
  };
  const bool mine = std::ranges::any_of(trainer.parameters(), overflows);
  return std::ranges::any_of(world.all_gather(group, mine), std::identity());
}

void judge_overflow(harness::Judge& judge, const TrainingConfig& config, int step, bool skipped,
                    double scale, const StepMagnitudes& in_double) {
  const std::optional<bool> must = must_overflow(in_double, scale, gradient_epsilon(config));
  if (must)
    judge.exact(fmt::format("whether step {} is skipped at a loss scale of {}; in double its "
                            "gradients reach {:.3g}, and sums of them at most {:.3g}",
                            step, scale, scale * in_double.backward.stored,
                            scale * in_double.backward.partial),
                std::vector{skipped ? 1.0 : 0.0}, std::vector{*must ? 1.0 : 0.0});
}

std::string shard_text(const collectives::Parameter& parameter, const Trainer& trainer) {
  if (const auto& block = parameter.placement.block)
    return fmt::format(" (block at row {}, column {})", block->row, block->col);
  return parameter.placement.tp == collectives::Spread::replicated
             ? ""
             : fmt::format(" (part {})",
                           parameter.placement.part(trainer.grid().coordinate(Axis::tp)));
}

}  // namespace suite

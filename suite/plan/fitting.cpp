#include "suite/plan/fitting.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <utility>
#include <vector>

#include "suite/configuration/models.h"
#include "suite/plan/host_memory.h"
#include "suite/plan/model_shape.h"
#include "suite/trainer/model_chunks.h"
#include "suite/trainer/validation.h"

namespace suite::configuration {
namespace {

struct Needed {
  double device = 0, host = 0;
  Bytes parts;            // of the larger of the two
  bool at_start = false;  // the start needs more than a step
};

Needed needed(const TrainingConfig& config, int stage, bool on_gpu) {
  const Held held = held_by_stage(config, stage);
  const double step = held.gpu.total();
  Needed all{.device = std::max(step, held.gpu_at_start),
             .host = held.cpu.total(),
             .parts = held.gpu,
             .at_start = held.gpu_at_start > step};
  if (!on_gpu) all.host += std::exchange(all.device, 0);
  return all;
}

bool fits(const Needed& all, const Room& room) {
  return (room.device <= 0 || all.device <= room.device) &&
         (room.host <= 0 || all.host <= room.host);
}

// Returns the mean of a rank's bytes in host memory over the stages.
double mean_on_host(const TrainingConfig& config, bool on_gpu) {
  double sum = 0;
  for (int stage = 0; stage < config.degrees.pp; ++stage) sum += needed(config, stage, on_gpu).host;
  return sum / config.degrees.pp;
}

bool stages_fit(const TrainingConfig& config, const Room& room) {
  for (const int stage : {0, config.degrees.pp - 1})
    if (!fits(needed(config, stage, room.computes_on_gpu), room)) return false;
  return true;
}

std::string text(const Bytes& bytes) {
  return fmt::format("parameters {}, gradients {}, optimizer {}, activations {}, buffers {}",
                     bytes_text(bytes.parameters), bytes_text(bytes.gradients),
                     bytes_text(bytes.optimizer), bytes_text(bytes.activations),
                     bytes_text(bytes.buffers));
}

std::string advice(const TrainingConfig& config, const Room& room) {
  const std::optional<machine::Degrees> nearest = nearest_degrees(config, room);
  if (!nearest) return "no tensor- and pipeline-parallel degrees fit";
  return fmt::format(
      "the nearest degrees that fit are tensor-model-parallel-size {} x "
      "pipeline-model-parallel-size {} x data-parallel-size {} = {} ranks",
      nearest->tp, nearest->pp, nearest->dp, nearest->ranks());
}

}  // namespace

std::string bytes_text(double bytes) {
  constexpr std::array units{"MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  bytes /= 0x1p20;
  for (; bytes >= 1024 && unit + 1 < units.size(); ++unit) bytes /= 1024;
  return fmt::format("{:.1f} {}", bytes, units[unit]);
}

Room room_of_rank(machine::World& world, const machine::Group& group, machine::Device& device) {
  Room room;
  room.computes_on_gpu = device.kind() == machine::Device::Kind::cuda;
  if (room.computes_on_gpu)
    room.device =
        static_cast<double>(device.memory_bytes()) / std::max(1, world.sharers_of_device(group));
  const std::string& mine = world.host(world.rank());
  const auto ranks = static_cast<double>(
      std::ranges::count_if(group.members, [&](int member) { return world.host(member) == mine; }));
  room.one_host = world.on_one_host(group);
  const HostMemory memory = host_memory();
  if (memory.room <= 0) return room;
  // Freed memory that the process keeps can be used again.
  room.host = world.ranks_are_threads() ? (memory.room + memory.held) / std::max(1.0, ranks)
                                        : memory.room / std::max(1.0, ranks) + memory.held;
  return room;
}

std::string why_too_large(const TrainingConfig& config, int stage, const Room& room,
                          double reference, bool advises) {
  Needed all = needed(config, stage, room.computes_on_gpu);
  if (room.one_host) all.host = mean_on_host(config, room.computes_on_gpu);
  all.host += reference;
  if (fits(all, room)) return "";
  const bool device = room.device > 0 && all.device > room.device;
  std::string why = fmt::format(
      "a rank{} needs at least {} of {} memory, and {} are available ({}{}{})",
      config.degrees.pp > 1 && (device || !room.one_host)
          ? fmt::format(" of pipeline stage {}", stage)
          : "",
      bytes_text(device ? all.device : all.host), device ? "device" : "host",
      bytes_text(device ? room.device : room.host), text(all.parts),
      all.at_start ? "; the start holds whole values and gradients" : "",
      reference > 0 ? fmt::format("; share of the reference in double {}", bytes_text(reference))
                    : "");
  all.host -= reference;
  if (reference > 0 && fits(all, room)) return why + "; --reference none needs no second copy";
  return advises ? why + "; " + advice(config, room) : why;
}

std::optional<machine::Degrees> nearest_degrees(const TrainingConfig& config, const Room& room) {
  constexpr int most_tp = 64, most_pp = 128;
  std::vector<machine::Degrees> candidates;
  for (int tp = 1; tp <= most_tp; tp *= 2)
    for (int pp = 1; pp <= most_pp; pp *= 2) {
      candidates.push_back(config.degrees);
      candidates.back().tp = tp;
      candidates.back().pp = pp;
    }
  std::ranges::stable_sort(candidates, {}, &machine::Degrees::ranks);
  for (const machine::Degrees& degrees : candidates) {
    TrainingConfig tried = config;
    tried.degrees = degrees;
    if (degrees.tp == 1) tried.activations.sequence_parallel = false;
    // Most degrees are too few for the values alone.
    const double most = room.computes_on_gpu ? room.device : room.host;
    if (most > 0 && config.zero.stage < 3 &&
        parameters_of_rank(tried) * static_cast<double>(size_of(config.precision.dtype)) > most)
      continue;
    try {
      if (tried.model.tokens > 0)
        tried.model.vocabulary = padded_vocabulary(tried.model, degrees.tp);
      validate(tried);
      if (stages_fit(tried, room)) return degrees;
    } catch (const std::invalid_argument&) {
      // The model or the schedule does not allow these degrees.
    }
  }
  return {};
}

}  // namespace suite::configuration

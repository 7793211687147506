#pragma once
// Whether a rank's part of a training step fits into its memory, before anything is allocated.
//
//   const Room room = room_of_rank(world, group, device);
//   const std::string why = why_too_large(config, stage, room);   // empty: it fits

#include <optional>
#include <string>

#include "machine/world/world.h"
#include "suite/plan/memory_plan.h"

namespace suite::configuration {

// Bytes that one rank can take; 0: unknown.
struct Room {
  double device = 0;  // of its GPU; unused if it computes on the host
  double host = 0;
  bool computes_on_gpu = false;
  bool one_host = false;  // all stages share the host's memory, so only their sum must fit
};
// A host's memory is divided by its ranks, a GPU's by the ranks that share it.
Room room_of_rank(machine::World& world, const machine::Group& group, machine::Device& device);

// Returns "a rank of pipeline stage 0 needs at least 10.1 GiB of host memory (…), of which 3.0 GiB
// are available; …" with the nearest degrees that fit, or empty. config: valid and complete.
// reference: this rank's share of a reference in double in its host's memory, in bytes. advises:
// searches the degrees, which takes about a second for a large model.
std::string why_too_large(const TrainingConfig& config, int stage, const Room& room,
                          double reference = 0, bool advises = true);

// Returns the degrees of the fewest ranks whose first and last stage fit, with the same
// data-parallel-size. Empty: no degrees that the model and the schedule allow fit.
std::optional<machine::Degrees> nearest_degrees(const TrainingConfig& config, const Room& room);

// "12.0 GiB", "1.5 TiB"
std::string bytes_text(double bytes);

}  // namespace suite::configuration

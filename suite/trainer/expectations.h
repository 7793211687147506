#pragma once
// What a training step must cost a rank, put together from the rooms' formulas: layers
// (gpt_cost.h, gpt_memory.h), zero (cost.h), pipeline (execute.h) and collectives (cost.h).

#include <cstdint>
#include <map>
#include <string>

#include "suite/trainer/trainer.h"
#include "zero/cost/cost.h"

namespace suite {

// What a stage holds of the micro-batches that pass it, chunk by chunk as the schedule has them
// alive (layers/models/gpt_memory.h), and of what the executor sends them on with. buffers: with
// the temporaries of the deepest action, tokens, targets and losses. host: checkpoints, with
// cpu_checkpointing, and what of them goes there in one step and comes back.
struct PassagePeaks {
  std::size_t activations = 0, buffers = 0, host = 0, moved_each_way = 0;
};
PassagePeaks passage_peaks(const TrainingConfig& config, const pipeline::StageSchedules& schedules,
                           int stage);
PassagePeaks passage_peaks(const Trainer& trainer);

// Peak bytes by category over a step that is not the first. buffers: the decay mask and the norm's
// doubles, the scratch of collectives, and those of the passage.
std::map<machine::Category, std::size_t> expected_peaks(const Trainer& trainer);

// With offload_optimizer and offload_param: what zero/cost/cost.h says of host memory, and of bytes
// moved in one step.
zero::ExpectedMemory expected_states(const Trainer& trainer);
zero::OffloadTraffic expected_offload_traffic(const Trainer& trainer);

// Bytes and messages of one step, by group and label. The norm's exchange is in it.
std::map<std::string, std::map<machine::TrafficLabel, machine::Traffic>> expected_traffic(
    const Trainer& trainer);

}  // namespace suite

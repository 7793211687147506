#pragma once
// What a training step must cost a rank, put together from the rooms' formulas: layers
// (gpt_cost.h, gpt_memory.h), zero (cost.h), pipeline (execute.h) and collectives (cost.h).

#include <cstdint>
#include <map>
#include <string>

#include "suite/training_step/trainer.h"
#include "zero/cost.h"

namespace suite {

// Peak bytes by category over a step that is not the first. buffers: the decay mask and the norm's
// doubles, the executor's outboxes, tokens, targets and losses, the scratch of collectives, and the
// temporaries of the deeper of forward and backward.
std::map<machine::Category, std::size_t> expected_peaks(const Trainer& trainer);

// With cpu_checkpointing: the peak of the checkpoints' bytes in host memory, and what goes there in
// one step and comes back.
struct HostCheckpoints {
  std::size_t held = 0, moved_each_way = 0;
};
HostCheckpoints expected_host_checkpoints(const Trainer& trainer);

// With offload_optimizer and offload_param: what zero/cost.h says of host memory, and of bytes
// moved in one step.
zero::ExpectedMemory expected_states(const Trainer& trainer);
zero::OffloadTraffic expected_offload_traffic(const Trainer& trainer);

// Bytes sent in one step, by group and label. The norm's exchange is in it.
std::map<std::string, std::map<machine::TrafficLabel, std::uint64_t>> expected_bytes_sent(
    const Trainer& trainer);

}  // namespace suite

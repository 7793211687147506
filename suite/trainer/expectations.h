#pragma once
// The expected cost of a training step on one rank, combined from the formulas of layers
// (gpt_cost.h, gpt_memory.h), zero (cost.h), pipeline (execute.h) and collectives (cost.h).

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "collectives/communicator/calls.h"
#include "suite/trainer/trainer.h"
#include "zero/cost/cost.h"

namespace suite {

// Peak bytes of a stage's micro-batches in flight, chunk by chunk in the order of the schedule
// (layers/models/gpt_memory.h), and of the executor's messages. buffers: also the temporaries of
// the largest action, tokens, targets and losses. host: checkpoints in host memory with
// cpu_checkpointing, and chunks of FPDT with offloading; their copies per step.
struct PassagePeaks {
  std::size_t activations = 0, buffers = 0;
  struct Host {
    std::size_t activations = 0, buffers = 0;
  } host;
  std::size_t checkpoints_each_way = 0;
  layers::HostCopies chunks;
};
// rows: of experts; empty: the same number for all experts.
PassagePeaks passage_peaks(const TrainingConfig& config, const pipeline::StageSchedules& schedules,
                           int stage, const StageRank& rank = {}, const RoutedRows& rows = {});
PassagePeaks passage_peaks(const Trainer& trainer, const RoutedRows& rows = {});

// Returns the cost of all collectives of a step that updates; with 1-bit Adam of one in its
// warm-up. Collective over the groups whose links are rendezvous links, before the first step.
collectives::CallsCost cost_of_calls(const Trainer& trainer);

// Returns the names of the groups of this rank in which the library runs collectives of a step.
std::vector<std::string> groups_by_library(const Trainer& trainer);

// Peak bytes by category over a step that is not the first. buffers: the decay mask, the norm's
// doubles, the scratch of collectives, and the buffers of PassagePeaks. compression: on a GPU, with
// the longest lists of all steps so far. links, only of rendezvous links: the staging of
// collectives. rows: of the step. updates: before it.
std::map<machine::Category, std::size_t> expected_peaks(const Trainer& trainer,
                                                        const RoutedRows& rows = {},
                                                        std::int64_t updates = 0);

// Host memory and bytes moved per step with offload_optimizer and offload_param (zero/cost/cost.h).
zero::ExpectedMemory expected_states(const Trainer& trainer, std::int64_t updates = 0);
zero::OffloadTraffic expected_offload_traffic(const Trainer& trainer);

// Returns the bytes and messages of the last step by group and label, including the exchange of the
// norm, without the calls that the library runs. Collective over the group with experts, whose
// messages follow from the routing.
std::map<std::string, std::map<machine::TrafficLabel, machine::Traffic>> expected_traffic(
    const Trainer& trainer);

}  // namespace suite

#pragma once
// Where the optimizer's states are: DeepSpeed's `offload_optimizer`, with its `device` none, cpu or
// nvme; ratio, nvme_path, buffer_count, buffer_size and sub_group_size have its names, too. What is
// offloaded is what the rank owns: gradients go down for that alone.

#include <cstdint>
#include <memory>
#include <vector>

#include "zero/offload/offload_cpu.h"
#include "zero/offload/offload_device.h"
#include "zero/offload/offload_nvme.h"
#include "zero/offload/owned_optimizer.h"

namespace zero {

struct StateOptions {
  OffloadDevice device = OffloadDevice::none;
  OffloadOptions cpu = {};
  NvmeOptions nvme = {};
  // Whose memory is taken, with cpu and nvme, also by offload_param; it outlives the step. Null:
  // the step makes one.
  machine::Device* host = nullptr;

  bool is_delayed() const { return device == OffloadDevice::cpu && cpu.delayed_update; }
};
// Throws std::invalid_argument naming the option that is out of range or goes with another device.
void check(const StateOptions& options, machine::Dtype value);

// Bytes held from construction on, and moved by one update (delayed: taken together with the
// drain), for ranges of these sizes. away: of those, whether values have a home elsewhere, whose
// traffic with a file is not counted; empty: none has.
struct StateCost {
  std::size_t device_optimizer = 0, device_buffers = 0, host_optimizer = 0, host_buffers = 0;
  OffloadTraffic moved;
};
StateCost state_cost(const Rule& rule, machine::Dtype value, const std::vector<std::int64_t>& sizes,
                     const StateOptions& options, const std::vector<bool>& away = {});

// host: as StateOptions::host, not used with none. Throws as check, and what NvmeOptimizer throws.
std::unique_ptr<OwnedOptimizer> make_optimizer(const Rule& rule, std::vector<OwnedRange> owned,
                                               const StateOptions& options, machine::Device& host);

}  // namespace zero

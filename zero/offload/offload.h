#pragma once
// The storage of the optimizer's states: DeepSpeed's `offload_optimizer`, with its `device` none,
// cpu or nvme. ratio, nvme_path, buffer_count, buffer_size and sub_group_size also have DeepSpeed's
// names. Only the elements that the rank owns are offloaded, and only their gradients are copied to
// the host.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "zero/offload/owned_optimizer.h"
#include "zero/offload/swap_file.h"

namespace zero {

// `device` of offload_optimizer and of offload_param (offload_param.h).
enum class OffloadDevice : unsigned char { none, cpu, nvme };
std::string_view name(OffloadDevice device);
std::vector<std::string> offload_device_names();
// key: for messages. Throws std::invalid_argument that names the nearest device.
OffloadDevice find_offload_device(std::string_view wanted,
                                  std::string_view key = "offload_optimizer");

// Options of device cpu.
struct OffloadOptions {
  std::int64_t piece_size = std::int64_t{1} << 20;  // elements
  double ratio = 1;  // fraction of the elements that the host updates (DeepSpeed's name)
  bool delayed_update = false;
};

// Options of device nvme. Names and defaults are DeepSpeed's; sizes are elements.
struct NvmeOptions {
  SwapOptions swap = {};
  std::int64_t sub_group_size = 1'000'000'000;
  int buffer_count = 4;
  std::int64_t buffer_size = 100'000'000;  // a longer sub-group is split
};

struct StateOptions {
  OffloadDevice device = OffloadDevice::none;
  OffloadOptions cpu = {};
  NvmeOptions nvme = {};
  // DeepSpeed's name. Not its default, which is false: copies of pageable memory are slow, and the
  // host waits for them.
  bool pin_memory = true;
  // The device whose memory offload_optimizer and offload_param use. It must outlive the step.
  // Null: the step makes one, with pinned memory if pin_memory is set.
  machine::Device* host = nullptr;
  // For tests: called before each phase of a piece, by the thread of the phase.
  std::function<void(OffloadPhase, std::int64_t piece)> before = {};

  bool is_delayed() const { return device == OffloadDevice::cpu && cpu.delayed_update; }
};
// Throws std::invalid_argument that names the option that is out of range or that needs another
// device.
void check(const StateOptions& options);

// Bytes held after construction, and moved by one update (if delayed, with its drain), for ranges
// of these sizes. away: for each range, whether its values have a home (ValueHome); empty: no range
// has one. The file traffic of homes is not counted. gradient_dtype: see StreamedOptimizer.
struct StateCost {
  std::size_t device_optimizer = 0, device_buffers = 0;
  std::size_t host_optimizer = 0;  // master and moments in host memory
  std::size_t host_buffers = 0;    // staging, mask, buffers of a file
  OffloadTraffic moved;
  std::int64_t host_elements = 0, pieces = 0;  // streamed
};
StateCost state_cost(const Rule& rule, Dtype value, const std::vector<std::int64_t>& sizes,
                     const StateOptions& options, const std::vector<bool>& away = {},
                     std::optional<Dtype> gradient_dtype = {});

// host: see StateOptions::host; not used with device none. Throws the exceptions of check and of
// StreamedOptimizer.
std::unique_ptr<OwnedOptimizer> make_optimizer(const Rule& rule, std::vector<OwnedRange> owned,
                                               const StateOptions& options, machine::Device& host,
                                               std::optional<Dtype> gradient_dtype = {});

}  // namespace zero

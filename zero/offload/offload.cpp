#include "zero/offload/offload.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "machine/base/error.h"
#include "machine/base/names.h"
#include "machine/base/reject.h"
#include "zero/offload/stream_plan.h"
#include "zero/offload/streamed_optimizer.h"

namespace zero {

std::string_view name(OffloadDevice device) {
  constexpr std::string_view names[] = {"none", "cpu", "nvme"};
  return names[static_cast<std::size_t>(device)];
}

std::vector<std::string> offload_device_names() { return {"none", "cpu", "nvme"}; }

OffloadDevice find_offload_device(std::string_view wanted, std::string_view key) {
  return machine::named(fmt::format("device of {}", key), wanted,
                        {OffloadDevice::none, OffloadDevice::cpu, OffloadDevice::nvme});
}

void check(const StateOptions& options) {
  const OffloadOptions& cpu = options.cpu;
  const NvmeOptions& nvme = options.nvme;
  if (options.device == OffloadDevice::cpu) {
    machine::check_positive("piece_size", cpu.piece_size);
    if (!(cpu.ratio >= 0 && cpu.ratio <= 1))
      machine::reject("ratio is {}; expected 0 to 1", cpu.ratio);
  } else if (cpu.delayed_update || cpu.ratio != 1) {
    machine::reject("{} requires offload_optimizer cpu (got {})",
                    cpu.delayed_update ? "delayed_update" : fmt::format("ratio {}", cpu.ratio),
                    name(options.device));
  }
  if (options.device == OffloadDevice::nvme) {
    machine::check_positive("sub_group_size", nvme.sub_group_size);
    machine::check_positive("buffer_count", nvme.buffer_count);
    machine::check_positive("buffer_size", nvme.buffer_size);
    check(nvme.swap.io);
  }
}

StateCost state_cost(const Rule& rule, Dtype value, const std::vector<std::int64_t>& sizes,
                     const StateOptions& options, const std::vector<bool>& away,
                     std::optional<Dtype> gradient_dtype) {
  if (options.device != OffloadDevice::none)
    return stream_plan(rule, value, sizes, options, away, gradient_dtype).cost(rule, value);
  check(options);
  const auto elements =
      static_cast<std::size_t>(std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}));
  std::int64_t longest = 0, staged = 0;  // of the InMemoryOptimizer
  for (std::size_t i = 0; i < away.size(); ++i) {
    if (!away[i]) continue;
    longest = std::max(longest, sizes[i]);
    staged += sizes[i];
  }
  const std::size_t width = size_of(value);
  const std::size_t down = static_cast<std::size_t>(staged) * width;
  return {.device_optimizer = elements * optimizer_bytes_per_element(rule, value),
          .device_buffers =
              elements * mask_bytes_per_element(rule) + static_cast<std::size_t>(longest) * width,
          .moved = {.down = down, .up = kept_states(rule, value).master ? 0 : down}};
}

std::unique_ptr<OwnedOptimizer> make_optimizer(const Rule& rule, std::vector<OwnedRange> owned,
                                               const StateOptions& options, machine::Device& host,
                                               std::optional<Dtype> gradient_dtype) {
  SHARDMARK_CHECK(owned.empty(), ==, false);
  check(options);
  if (options.device != OffloadDevice::none)
    return std::make_unique<StreamedOptimizer>(rule, std::move(owned), host, options,
                                               gradient_dtype);
  return std::make_unique<InMemoryOptimizer>(rule, std::move(owned));
}

}  // namespace zero

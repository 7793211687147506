#include "zero/offload/offload.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "collectives/placement.h"
#include "machine/base/error.h"
#include "machine/base/names.h"
#include "zero/offload/offload_param.h"

namespace zero {
namespace {

constexpr std::array names{std::pair{OffloadDevice::none, "none"},
                           std::pair{OffloadDevice::cpu, "cpu"},
                           std::pair{OffloadDevice::nvme, "nvme"}};

}  // namespace

std::string_view name(OffloadDevice device) {
  for (const auto& [each, name] : names)
    if (each == device) return name;
  return "?";
}

std::vector<std::string> offload_device_names() {
  std::vector<std::string> all;
  for (const auto& [each, name] : names) all.emplace_back(name);
  return all;
}

OffloadDevice find_offload_device(std::string_view wanted, std::string_view key) {
  for (const auto& [each, name] : names)
    if (name == wanted) return each;
  throw std::invalid_argument(
      machine::unknown(fmt::format("device of {}", key), wanted, offload_device_names()));
}

void check(const StateOptions& options, machine::Dtype value) {
  const machine::Dtype wide = collectives::gradient_dtype(value);
  if (options.device != OffloadDevice::cpu) {
    const auto of_cpu = [&](std::string_view what) {
      throw std::invalid_argument(
          fmt::format("{} with offload_optimizer {}: it goes with offload_optimizer cpu", what,
                      name(options.device)));
    };
    if (options.cpu.delayed_update) of_cpu("delayed_update");
    if (options.cpu.ratio != 1) of_cpu(fmt::format("ratio {}", options.cpu.ratio));
  }
  if (options.device == OffloadDevice::cpu) {
    if (options.cpu.gradient_dtype.value_or(wide) != wide)
      throw std::invalid_argument(fmt::format("gradient_dtype {}: a step's gradients are {}",
                                              machine::name(*options.cpu.gradient_dtype),
                                              machine::name(wide)));
    offload_cost(AdamW{}, value, 0, options.cpu);
  }
  if (options.device == OffloadDevice::nvme) check(options.nvme);
}

StateCost state_cost(const Rule& rule, machine::Dtype value, const std::vector<std::int64_t>& sizes,
                     const StateOptions& options, const std::vector<bool>& away) {
  check(options, value);
  const auto elements =
      static_cast<std::size_t>(std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}));
  switch (options.device) {
    case OffloadDevice::none: {
      std::int64_t longest = 0, staged = 0;  // StagedOptimizer's
      for (std::size_t i = 0; i < away.size(); ++i) {
        if (!away[i]) continue;
        longest = std::max(longest, sizes[i]);
        staged += sizes[i];
      }
      const std::size_t width = size_of(value);
      const std::size_t down = static_cast<std::size_t>(staged) * width;
      return {.device_optimizer = elements * optimizer_bytes_per_element(rule, value),
              .device_buffers = elements * mask_bytes_per_element(rule) +
                                static_cast<std::size_t>(longest) * width,
              .moved = {.down = down, .up = kept_states(rule, value).master ? 0 : down}};
    }
    case OffloadDevice::cpu: {
      const OffloadCost cost = offload_cost(rule, value, sizes, options.cpu, away);
      return {cost.device_optimizer,
              cost.device_buffers,
              cost.host_optimizer,
              cost.host_buffers,
              {.down = cost.down, .up = cost.up}};
    }
    case OffloadDevice::nvme: {
      const SwapBytes bytes = swap_bytes(rule, value, sizes, options.nvme, away);
      return {.host_buffers = bytes.buffers + bytes.mask + bytes.staging,
              .moved = {bytes.down, bytes.up, bytes.of_pass, bytes.of_pass}};
    }
  }
  return {};
}

std::unique_ptr<OwnedOptimizer> make_optimizer(const Rule& rule, std::vector<OwnedRange> owned,
                                               const StateOptions& options, machine::Device& host) {
  SHARDMARK_CHECK(owned.empty(), ==, false);
  check(options, owned.front().dtype());
  switch (options.device) {
    case OffloadDevice::none:
      break;
    case OffloadDevice::cpu:
      return std::make_unique<OffloadOptimizer>(rule, std::move(owned), host, options.cpu);
    case OffloadDevice::nvme:
      return std::make_unique<NvmeOptimizer>(rule, std::move(owned), host, options.nvme);
  }
  for (const OwnedRange& range : owned)
    if (range.home) return std::make_unique<StagedOptimizer>(rule, std::move(owned));
  return std::make_unique<InMemoryOptimizer>(rule, owned);
}

}  // namespace zero

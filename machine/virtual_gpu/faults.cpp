#include "machine/virtual_gpu/faults.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "machine/virtual_gpu/configuration.h"
#include "machine/virtual_gpu/errors.h"
#include "machine/virtual_gpu/memory.h"

namespace machine::virtual_gpu {
namespace {

using Count = std::atomic<std::uint64_t>;
using Bytes = std::vector<std::byte>;

// Returns the contents of the allocations that the words point to.
std::vector<std::pair<Allocation, Bytes>> contents(const std::vector<std::uint64_t>& words) {
  std::vector<std::pair<Allocation, Bytes>> all;
  for (const std::uint64_t word : words) {
    Allocation memory;
    if (find(reinterpret_cast<const void*>(word), &memory) == Place::device && memory.live)
      all.emplace_back(memory, Bytes(memory.base, memory.base + memory.bytes));
  }
  return all;
}

// Changes the first four bytes that the work has written: the highest bit of the exponent of a
// float, or of the second of two halves.
bool flip_a_bit(const std::vector<std::pair<Allocation, Bytes>>& before) {
  for (const auto& [memory, old] : before) {
    const auto changed = std::mismatch(old.begin(), old.end(), memory.base).first;
    if (changed == old.end()) continue;
    const auto at = static_cast<std::size_t>(changed - old.begin()) | 3;
    memory.base[std::min(at, memory.bytes - 1)] ^= std::byte{0x40};
    return true;
  }
  return false;
}

}  // namespace

std::uint64_t count_launch(int device) {
  static Count launches[most_devices];
  return ++launches[device];
}

std::vector<std::uint64_t> kept_words(const std::vector<std::uint64_t>& words) {
  return configuration().faults.empty() ? std::vector<std::uint64_t>() : words;
}

void run_launch(int device, std::uint64_t number, const char* name,
                const std::vector<std::uint64_t>& words, const std::function<void()>& run) {
  static std::atomic<bool> flipped{false};
  static Count products[most_devices];
  using enum Fault::Kind;
  const std::uint64_t product_number =
      name == std::string_view(product_name) ? ++products[device] : 0;
  bool flips = false, once = false;
  for (const Fault& fault : configuration().faults) {
    if (fault.device != on_host(device) || fault.kind == memory || fault.kind == link) continue;
    flips |= fault.kind == product && product_number >= fault.number;
    // Work that writes nothing new leaves this fault to the next.
    once |= fault.kind == bit && number >= fault.number && !flipped;
    if (fault.kind == bit || fault.kind == product || fault.number != number) continue;
    strike(fault.kind, fault.device);
    const std::string text = fmt::format("injected into {}", name);
    if (fault.kind == launch) return break_device(device, cudaErrorLaunchFailure, text);
    if (fault.kind == ecc) return break_device(device, cudaErrorECCUncorrectable, text);
    if (fault.kind == lost) return break_device(device, cudaErrorDevicesUnavailable, text);
  }
  if (!flips && !once) return run();
  const auto before = contents(words);
  run();
  if (sticky_error(device) == cudaSuccess && flip_a_bit(before) && once) flipped = true;
}

bool allocation_fails(int device_on_host) {
  static Count allocations[most_devices];
  const std::uint64_t number = ++allocations[device_on_host];
  return std::ranges::any_of(configuration().faults, [&](const Fault& fault) {
    return fault.kind == Fault::Kind::memory && fault.device == device_on_host &&
           number >= fault.number;
  });
}

bool link_is_lost(int device_on_host, int other) {
  static Count transfers[most_devices];  // by the fault's first device
  const auto ends = std::minmax(device_on_host, other);
  return std::ranges::any_of(configuration().faults, [&](const Fault& fault) {
    return fault.kind == Fault::Kind::link && ends == std::minmax(fault.device, fault.peer) &&
           ++transfers[fault.device] >= fault.number;
  });
}

}  // namespace machine::virtual_gpu

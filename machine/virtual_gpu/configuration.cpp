#include "machine/virtual_gpu/configuration.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

namespace machine::virtual_gpu {
namespace {

[[noreturn]] void invalid(const char* variable, std::string_view value, const char* rule) {
  std::fprintf(stderr, "%s is %.*s; expected %s\n", variable, static_cast<int>(value.size()),
               value.data(), rule);
  std::_Exit(2);
}

// Parses a number and returns the text behind it.
std::string_view number(std::string_view text, std::uint64_t& value, const char* variable,
                        const char* rule) {
  const std::string copy(text);
  char* end = nullptr;
  value = std::strtoull(copy.c_str(), &end, 10);
  if (end == copy.c_str()) invalid(variable, text, rule);
  return text.substr(static_cast<std::size_t>(end - copy.c_str()));
}

void read_devices(std::string_view text, Configuration& result) {
  const char* variable = "SHARDMARK_VIRTUAL_GPUS";
  const char* rule = "a number and options (example: 4,memory=8GiB,sm=80,peers=none)";
  std::uint64_t value = 0;
  std::string_view rest = number(text, value, variable, rule);
  result.devices = static_cast<int>(value);
  while (!rest.empty()) {
    if (rest.front() != ',') invalid(variable, text, rule);
    rest.remove_prefix(1);
    if (rest.starts_with("memory=")) {
      rest = number(rest.substr(7), value, variable, rule);
      const bool gibibytes = rest.starts_with("GiB");
      if (!gibibytes && !rest.starts_with("MiB")) invalid(variable, text, rule);
      result.memory = value << (gibibytes ? 30 : 20);
      rest.remove_prefix(3);
    } else if (rest.starts_with("sm=")) {
      rest = number(rest.substr(3), value, variable, rule);
      result.major = static_cast<int>(value / 10);
      result.minor = static_cast<int>(value % 10);
    } else if (rest.starts_with("fault=")) {
      rest = number(rest.substr(6), value, variable, rule);
      result.faulty_device = static_cast<int>(value);
      if (!rest.starts_with(":")) invalid(variable, text, rule);
      rest = number(rest.substr(1), result.faulty_launch, variable, rule);
    } else if (rest.starts_with("peers=none")) {
      result.peers = false;
      rest.remove_prefix(10);
    } else {
      invalid(variable, text, rule);
    }
  }
}

// As the driver: an invalid number hides the devices after it.
void hide_devices(std::string_view text, Configuration& result) {
  while (!text.empty() && text.front() >= '0' && text.front() <= '9') {
    std::uint64_t device = 0;
    text = number(text, device, "CUDA_VISIBLE_DEVICES", "numbers");
    if (device >= static_cast<std::uint64_t>(result.devices)) break;
    result.visible.push_back(static_cast<int>(device));
    if (text.starts_with(",")) text.remove_prefix(1);
  }
  result.devices = static_cast<int>(result.visible.size());
}

void read_nccl(std::string_view text, Configuration& result) {
  const char* variable = "SHARDMARK_VIRTUAL_NCCL";
  const char* rule = "options (example: wait=30,ranks=shared)";
  std::uint64_t value = 0;
  for (std::string_view rest = text; !rest.empty();) {
    if (rest.starts_with("wait=")) {
      rest = number(rest.substr(5), value, variable, rule);
      result.nccl_wait_s = static_cast<double>(value);
    } else if (rest.starts_with("ranks=shared")) {
      rest.remove_prefix(12);
      result.ranks_share_devices = true;
    } else {
      invalid(variable, text, rule);
    }
    if (rest.starts_with(",")) rest.remove_prefix(1);
  }
}

Configuration read() {
  Configuration result;
  if (const char* text = std::getenv("SHARDMARK_VIRTUAL_GPUS")) read_devices(text, result);
  if (const char* text = std::getenv("CUDA_VISIBLE_DEVICES")) hide_devices(text, result);
  if (const char* text = std::getenv("SHARDMARK_VIRTUAL_NCCL")) read_nccl(text, result);
  if (const char* text = std::getenv("SHARDMARK_VIRTUAL_STREAMS")) {
    const std::string_view order = text;
    const char* rule = "lazy, eager or random:SEED";
    if (order == "eager") {
      result.order = Order::eager;
    } else if (order.starts_with("random:")) {
      result.order = Order::random;
      number(order.substr(7), result.seed, "SHARDMARK_VIRTUAL_STREAMS", rule);
    } else if (order != "lazy") {
      invalid("SHARDMARK_VIRTUAL_STREAMS", order, rule);
    }
  }
  return result;
}

}  // namespace

const Configuration& configuration() {
  static const Configuration result = read();
  return result;
}

int on_host(int device) {
  const std::vector<int>& visible = configuration().visible;
  return visible.empty() ? device : visible[static_cast<std::size_t>(device)];
}

// CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
std::size_t most_shared_memory(const Configuration& configuration) {
  const int sm = configuration.major * 10 + configuration.minor;
  const std::size_t kibibytes = sm >= 90 && sm < 120 ? 227 : sm == 80 || sm == 87 ? 163 : 99;
  return kibibytes << 10;
}

std::uint64_t random_number() {
  // SplitMix64. Threads share it, so the order of their calls is part of the sequence.
  static std::atomic<std::uint64_t> state{configuration().seed};
  std::uint64_t z = state.fetch_add(0x9e3779b97f4a7c15u) + 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

}  // namespace machine::virtual_gpu

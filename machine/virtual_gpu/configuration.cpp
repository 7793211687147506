#include "machine/virtual_gpu/configuration.h"

#include <sys/utsname.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <string_view>
#include <system_error>

namespace machine::virtual_gpu {
namespace {

// The value of a variable, and what is not read yet.
struct Text {
  const char* variable;
  const char* rule;
  std::string_view value, rest = value;

  [[noreturn]] void invalid() const {
    std::fprintf(stderr, "%s is %.*s; expected %s\n", variable, static_cast<int>(value.size()),
                 value.data(), rule);
    std::_Exit(2);
  }
  bool take(std::string_view word) {
    if (!rest.starts_with(word)) return false;
    rest.remove_prefix(word.size());
    return true;
  }
  void expect(std::string_view word) {
    if (!take(word)) invalid();
  }
  std::uint64_t number() {
    std::uint64_t result = 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), result);
    if (error != std::errc()) invalid();
    rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
    return result;
  }
  int device() {
    const std::uint64_t result = number();
    if (result >= most_devices) invalid();
    return static_cast<int>(result);
  }
};

Fault read_fault(Text& text) {
  Fault fault{Fault::Kind::launch, text.device()};
  if (text.take("-")) fault.peer = text.device();
  text.expect(":");
  const auto name = std::ranges::find_if(fault_names, [&](auto word) { return text.take(word); });
  if (name == fault_names.end()) text.invalid();
  fault.kind = static_cast<Fault::Kind>(name - fault_names.begin());
  if ((fault.kind == Fault::Kind::link) != (fault.peer >= 0)) text.invalid();
  if (text.take(":")) fault.number = text.number();
  return fault;
}

void read_devices(const char* value, Configuration& result) {
  Text text{"SHARDMARK_VIRTUAL_GPUS",
            "a number and options (example: 4,memory=8GiB,sm=80,peers=none,fault=1:ecc:20)", value};
  result.devices = static_cast<int>(text.number());
  if (result.devices > most_devices) text.invalid();
  while (!text.rest.empty()) {
    text.expect(",");
    if (text.take("memory=")) {
      result.memory = text.number() << 20;
      if (text.take("GiB"))
        result.memory <<= 10;
      else
        text.expect("MiB");
    } else if (text.take("sm=")) {
      const auto capability = static_cast<int>(text.number());
      result.major = capability / 10;
      result.minor = capability % 10;
    } else if (text.take("fault=")) {
      result.faults.push_back(read_fault(text));
    } else if (text.take("host=")) {
      result.host = text.rest.substr(0, text.rest.find(','));
      text.expect(result.host);
    } else {
      text.expect("peers=none");
      result.peers = false;
    }
  }
}

// As the driver: an invalid number hides the devices after it.
void hide_devices(const char* value, Configuration& result) {
  Text text{"CUDA_VISIBLE_DEVICES", "numbers", value};
  while (!text.rest.empty() && text.rest.front() >= '0' && text.rest.front() <= '9') {
    const std::uint64_t device = text.number();
    if (device >= static_cast<std::uint64_t>(result.devices)) break;
    result.visible.push_back(static_cast<int>(device));
    text.take(",");
  }
  result.devices = static_cast<int>(result.visible.size());
}

void read_nccl(const char* value, Configuration& result) {
  Text text{"SHARDMARK_VIRTUAL_NCCL", "options (example: wait=30,ranks=shared)", value};
  while (!text.rest.empty()) {
    if (text.take("wait=")) {
      result.nccl_wait_s = static_cast<double>(text.number());
    } else {
      text.expect("ranks=shared");
      result.ranks_share_devices = true;
    }
    text.take(",");
  }
}

void read_order(const char* value, Configuration& result) {
  Text text{"SHARDMARK_VIRTUAL_STREAMS", "lazy, eager or random:SEED", value};
  if (text.take("random:")) {
    result.order = Order::random;
    result.seed = text.number();
  } else if (text.take("eager")) {
    result.order = Order::eager;
  } else {
    text.expect("lazy");
  }
}

Configuration read() {
  struct Variable {
    const char* name;
    void (*read)(const char* value, Configuration& result);
  };
  Configuration result;
  for (const auto& [name, read] : {Variable{"SHARDMARK_VIRTUAL_GPUS", read_devices},
                                   {"CUDA_VISIBLE_DEVICES", hide_devices},
                                   {"SHARDMARK_VIRTUAL_NCCL", read_nccl},
                                   {"SHARDMARK_VIRTUAL_STREAMS", read_order}})
    if (const char* value = std::getenv(name)) read(value, result);
  return result;
}

// Here, because the library that stands for NVML has this file (CMakeLists.txt).
std::array<std::array<std::atomic<int>, most_devices>, fault_names.size()> struck;

}  // namespace

const Configuration& configuration() {
  static const Configuration result = read();
  return result;
}

int on_host(int device) {
  const std::vector<int>& visible = configuration().visible;
  return visible.empty() ? device : visible[static_cast<std::size_t>(device)];
}

std::uint32_t host_number() {
  static const std::uint32_t number = [] {
    utsname names{};
    ::uname(&names);
    const std::string& host = configuration().host;
    return static_cast<std::uint32_t>(
        std::hash<std::string>()(host.empty() ? names.nodename : host));
  }();
  return number;
}

int strikes(Fault::Kind kind, int device_on_host) {
  return struck[static_cast<std::size_t>(kind)][static_cast<std::size_t>(device_on_host)];
}
void strike(Fault::Kind kind, int device_on_host) {
  ++struck[static_cast<std::size_t>(kind)][static_cast<std::size_t>(device_on_host)];
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

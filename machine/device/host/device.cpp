// The host as a device: memory from the heap or from a segment that other ranks map, and a stream
// whose calls are complete when they return.

#include "machine/device/device.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "machine/device/host/kernels.h"

namespace machine {
namespace {

constexpr std::size_t alignment = 64;

class Heap final : public HostMemory {
 public:
  void* allocate(std::size_t bytes) override {
    if (bytes > static_cast<std::size_t>(PTRDIFF_MAX) - alignment) return nullptr;
    return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  }
  void free(void* data, std::size_t) override { std::free(data); }
};

class HostEvent final : public Event {
 public:
  void synchronize() override {}
  double seconds_since(const Event& earlier) const override {
    return std::chrono::duration<double>(at_ - dynamic_cast<const HostEvent&>(earlier).at_).count();
  }

 private:
  std::chrono::steady_clock::time_point at_ = std::chrono::steady_clock::now();
};

class HostStream final : public Stream {
 public:
  explicit HostStream(Device& device) : Stream(device, host::make_kernels(device)) {}
  void copy(void* to, const void* from, std::size_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
  std::unique_ptr<Event> record() override { return std::make_unique<HostEvent>(); }
  void wait(const Event&) override {}
  void synchronize() override {}
};

std::string processor_name() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);)
    if (line.starts_with("model name") && line.find(": ") != std::string::npos)
      return line.substr(line.find(": ") + 2);
  return "processor of unknown name";
}

class HostDevice final : public Device {
 public:
  explicit HostDevice(HostMemory& memory) : Device(Kind::host), memory_(memory) {
    stream_ = make_stream();
  }
  std::string description() const override {
    return fmt::format("host: {}, {} CPUs", processor_name(), sysconf(_SC_NPROCESSORS_ONLN));
  }
  std::unique_ptr<Stream> make_stream() override { return std::make_unique<HostStream>(*this); }

 private:
  void* do_allocate(std::size_t bytes) override { return memory_.allocate(bytes); }
  void do_free(void* data, std::size_t bytes) override { memory_.free(data, bytes); }
  HostMemory& memory_;
};

}  // namespace

HostMemory& process_heap() {
  static Heap heap;
  return heap;
}

std::unique_ptr<Device> make_host_device(HostMemory& memory) {
  return std::make_unique<HostDevice>(memory);
}

std::unique_ptr<Device> make_host_device_beside(Device& device, Pages pages) {
  auto made = make_host_device(pages == Pages::pinned ? device.pinned_memory() : process_heap());
  made->set_faults(device.faults());
  return made;
}

}  // namespace machine

#include "machine/virtual_gpu/ipc.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "machine/base/futex.h"
#include "machine/virtual_gpu/configuration.h"
#include "machine/virtual_gpu/errors.h"
#include "machine/virtual_gpu/memory.h"

namespace machine::virtual_gpu {
namespace {

constexpr std::uint32_t most_slots = 4096;
constexpr std::size_t segment_bytes = 4096 + most_slots * sizeof(SharedSlot::Words);

std::shared_ptr<std::byte> map_segment(int file) {
  void* memory = ::mmap(nullptr, segment_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) return nullptr;
  return {static_cast<std::byte*>(memory), [](std::byte* base) { ::munmap(base, segment_bytes); }};
}

// The events of this process that others may open, and the thread that serves requests.
class Exports {
 public:
  static Exports& of_process() {
    static Exports& one = *new Exports;  // its thread runs until the process ends
    return one;
  }
  int file() const { return file_; }

  // The caller has locked the event.
  std::shared_ptr<SharedSlot> add(const std::shared_ptr<Event>& event) {
    const std::lock_guard lock(mutex_);
    std::uint32_t index = 0;
    while (index < events_.size() && !events_[index].expired()) ++index;
    if (index == most_slots) return nullptr;
    if (index == events_.size()) events_.emplace_back();
    events_[index] = event;
    auto slot = std::make_shared<SharedSlot>(segment_, index);
    slot->start();
    slot->record(event->records);
    slot->reach(event->reached);
    if (event->reached < event->records)
      event->unreached.emplace_back(event->records, event->recorded);
    return slot;
  }

 private:
  Exports() : file_(::memfd_create("virtual_gpu_events", MFD_CLOEXEC)) {
    if (file_ < 0 || ::ftruncate(file_, segment_bytes) != 0) std::abort();
    segment_ = map_segment(file_);
    std::thread([this] { serve(); }).detach();
  }

  void serve() {
    Word& bell = *reinterpret_cast<Word*>(segment_.get());
    for (;;) {
      const std::uint32_t seen = bell;
      bool blocked = false;
      std::vector<std::shared_ptr<Event>> events;
      {
        const std::lock_guard lock(mutex_);
        for (const auto& weak : events_)
          if (auto event = weak.lock()) events.push_back(std::move(event));
      }
      for (const auto& event : events) blocked = !served(*event) || blocked;
      sleep_on(bell, seen, blocked ? 2e-4 : 1);
    }
  }
  static bool served(Event& event) {
    Point point;
    {
      const std::lock_guard lock(event.mutex);
      if (!event.slot) return true;
      const std::uint32_t requested = event.slot->requested();
      if (requested <= event.slot->reached()) return true;
      for (const auto& [number, end] : event.unreached)
        if (number >= requested && !point.queue) point = end;
    }
    return point.queue && try_until(point);
  }

  std::mutex mutex_;
  int file_;
  std::shared_ptr<std::byte> segment_;
  std::vector<std::weak_ptr<Event>> events_;  // by slot
};

class Record final : public RemotePoint {
 public:
  Record(std::shared_ptr<SharedSlot> slot, std::uint32_t number)
      : slot_(std::move(slot)), number_(number) {}
  bool reached() override { return slot_->reached() >= number_; }
  void request() override { slot_->request(number_); }
  void wait() override { slot_->wait(number_); }

 private:
  std::shared_ptr<SharedSlot> slot_;
  std::uint32_t number_;
};

// The first bytes of a handle. `file` is a descriptor of the process.
struct Handle {
  char kind[8] = {};
  std::uint32_t host = host_number();
  int process = ::getpid(), file = -1;
  int device = 0;  // its number on the host
};
struct EventHandle : Handle {
  std::uint32_t slot;
};
struct MemoryHandle : Handle {
  std::uint64_t bytes, mapped;
  int number;
};
constexpr char event_kind[8] = {'v', 'g', 'p', 'u', 'e', 'v', 'n', 't'};
constexpr char memory_kind[8] = {'v', 'g', 'p', 'u', 'm', 'e', 'm', 'o'};

template <class Contents>
void write_handle(void* handle, const char (&kind)[8], Contents contents) {
  static_assert(sizeof contents <= CUDA_IPC_HANDLE_SIZE);
  std::memcpy(contents.kind, kind, sizeof kind);
  std::memset(handle, 0, CUDA_IPC_HANDLE_SIZE);
  std::memcpy(handle, &contents, sizeof contents);
}

template <class Contents>
cudaError_t open_handle(const void* handle, const char (&kind)[8], Contents& contents, int& file) {
  std::memcpy(&contents, handle, sizeof contents);
  if (std::memcmp(contents.kind, kind, sizeof kind) != 0)
    return failed(cudaErrorInvalidResourceHandle, "not a handle of this kind");
  if (contents.host != host_number())
    return failed(cudaErrorInvalidResourceHandle, "a handle of another host");
  if (contents.process == ::getpid())
    return failed(cudaErrorDeviceUninitialized, "a process cannot open its own handle");
  if (const int here = on_host(current_device()); contents.device != here && !configuration().peers)
    return failed(cudaErrorPeerAccessUnsupported,
                  fmt::format("devices {} and {} of the host", here, contents.device));
  const std::string path = fmt::format("/proc/{}/fd/{}", contents.process, contents.file);
  file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0)
    return failed(cudaErrorMapBufferObjectFailed,
                  fmt::format("{}: {}", path, std::strerror(errno)));
  return cudaSuccess;
}

std::mutex opening;
std::map<std::tuple<int, int, int>, void*> opened_memory;  // by process, number and file

}  // namespace

SharedSlot::SharedSlot(std::shared_ptr<std::byte> segment, std::uint32_t index)
    : segment_(std::move(segment)),
      index_(index),
      words_(reinterpret_cast<Words*>(segment_.get() + 4096) + index),
      bell_(reinterpret_cast<Word*>(segment_.get())) {}

void SharedSlot::reach(std::uint32_t number) {
  words_->reached = number;
  wake(words_->reached);
}

void SharedSlot::start() { words_->requested = 0; }

void SharedSlot::request(std::uint32_t number) {
  std::uint32_t before = words_->requested;
  while (before < number && !words_->requested.compare_exchange_weak(before, number)) {
  }
  ++*bell_;
  wake(*bell_);
}

void SharedSlot::wait(std::uint32_t number) {
  for (;;) {
    const std::uint32_t now = words_->reached;
    if (now >= number) return;
    request(number);
    sleep_on(words_->reached, now, 0.1);
  }
}

std::shared_ptr<RemotePoint> last_record(const std::shared_ptr<SharedSlot>& slot) {
  const std::uint32_t number = slot->recorded();
  if (number == 0) return nullptr;
  return std::make_shared<Record>(slot, number);
}

}  // namespace machine::virtual_gpu

using namespace machine::virtual_gpu;

extern "C" {

cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle, cudaEvent_t event) {
  VIRTUAL_GPU_ENTER;
  const auto state = event_of(event);
  if (!state) return cudaErrorInvalidResourceHandle;
  if (!state->interprocess || state->opened)
    return failed(cudaErrorInvalidResourceHandle, "the event lacks cudaEventInterprocess");
  const std::lock_guard lock(state->mutex);
  if (!state->slot) state->slot = Exports::of_process().add(state);
  if (!state->slot) return failed(cudaErrorMemoryAllocation, "too many interprocess events");
  write_handle(handle, event_kind,
               EventHandle{{.file = Exports::of_process().file(), .device = on_host(state->device)},
                           state->slot->index()});
  return cudaSuccess;
}

cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* event, cudaIpcEventHandle_t handle) {
  VIRTUAL_GPU_ENTER;
  EventHandle contents{};
  int file = -1;
  if (const cudaError_t status = open_handle(&handle, event_kind, contents, file);
      status != cudaSuccess)
    return status;
  auto segment = map_segment(file);
  ::close(file);
  if (!segment) return failed(cudaErrorMapBufferObjectFailed, "the events of another process");
  auto state = std::make_shared<Event>();
  state->device = current_device();
  state->timed = false;
  state->interprocess = state->opened = true;
  state->slot = std::make_shared<SharedSlot>(std::move(segment), contents.slot);
  *event = publish(std::move(state));
  return cudaSuccess;
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* address) {
  VIRTUAL_GPU_ENTER;
  Allocation allocation;
  if (find(address, &allocation) != Place::device || !allocation.live || allocation.opened > 0)
    return failed(cudaErrorInvalidValue,
                  fmt::format("{} is not device memory of this process", describe(address)));
  write_handle(handle, memory_kind,
               MemoryHandle{{.file = allocation.file, .device = on_host(allocation.device)},
                            allocation.bytes,
                            allocation.mapped,
                            allocation.number});
  return cudaSuccess;
}

cudaError_t cudaIpcOpenMemHandle(void** address, cudaIpcMemHandle_t handle, unsigned int flags) {
  VIRTUAL_GPU_ENTER;
  if (flags != cudaIpcMemLazyEnablePeerAccess) return failed(cudaErrorInvalidValue, "flags");
  MemoryHandle contents{};
  int file = -1;
  const std::lock_guard lock(opening);
  if (const cudaError_t status = open_handle(&handle, memory_kind, contents, file);
      status != cudaSuccess)
    return status;
  const std::tuple key{contents.process, contents.number, contents.file};
  if (const auto known = opened_memory.find(key);
      known != opened_memory.end() && open_again(known->second)) {
    ::close(file);
    *address = known->second;
    return cudaSuccess;
  }
  const cudaError_t status =
      map_peer(current_device(), contents.device, file, contents.bytes, contents.mapped, address);
  if (status != cudaSuccess) ::close(file);
  if (status == cudaSuccess) opened_memory[key] = *address;
  return status;
}

cudaError_t cudaIpcCloseMemHandle(void* address) {
  VIRTUAL_GPU_ENTER_TO_RELEASE;
  return unmap_peer(address);
}
}

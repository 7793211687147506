#pragma once
// For tests: a device that code sees as a GPU when it offloads from it. The system ends a process
// that reads or writes the device's addresses on the host. Streams can only copy. Each runs behind
// its caller on its own thread.

#include <sys/mman.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <utility>

#include "machine/device/device.h"
#include "machine/device/kernels.h"
#include "machine/testing/queued_device.h"

namespace zero::testing {

// Each byte has an address without access, and an address that the streams use.
class FarMemory {
 public:
  FarMemory() : given_(map(PROT_NONE)), used_(map(PROT_READ | PROT_WRITE)) {}
  ~FarMemory() {
    for (std::byte* const each : {given_, used_}) ::munmap(each, size);
  }
  FarMemory(const FarMemory&) = delete;
  FarMemory& operator=(const FarMemory&) = delete;

  void* take(std::size_t bytes) {  // freed memory is not reused
    if (bytes > size - taken_) return nullptr;
    std::byte* const at = given_ + taken_;
    std::memset(used_ + taken_, 0xff, bytes);  // not a number
    taken_ += (bytes + 63) / 64 * 64;
    return at;
  }
  void* usable(const void* address) const {
    const auto* const at = static_cast<const std::byte*>(address);
    if (at < given_ || at >= given_ + size) return const_cast<void*>(address);
    return used_ + (at - given_);
  }

 private:
  static constexpr std::size_t size = std::size_t{64} << 20;
  static std::byte* map(int protection) {
    void* const at =
        ::mmap(nullptr, size, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) throw std::bad_alloc();
    return static_cast<std::byte*>(at);
  }
  std::byte *given_, *used_;
  std::size_t taken_ = 0;
};

class FarEvent final : public machine::Event {
 public:
  void synchronize() override {
    std::unique_lock lock(state_->mutex);
    state_->changed.wait(lock, [this] { return state_->reached; });
  }
  double seconds_since(const machine::Event&) const override { return 0; }
  // An event may be destroyed before it is reached or waited for.
  std::function<void()> reach() const {
    return [state = state_] {
      const std::lock_guard lock(state->mutex);
      state->reached = true;
      state->changed.notify_all();
    };
  }
  std::function<void()> await() const {
    return [same = *this]() mutable { same.synchronize(); };
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool reached = false;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

class FarStream final : public machine::Stream {
 public:
  FarStream(machine::Device& device, const FarMemory& memory)
      : Stream(device, nullptr), memory_(memory) {}
  FarStream(const FarStream&) = delete;
  FarStream& operator=(const FarStream&) = delete;

  void copy(void* to, const void* from, std::size_t bytes) override {
    if (bytes == 0) return;
    push([to = memory_.usable(to), from = memory_.usable(from), bytes] {
      std::memcpy(to, from, bytes);
    });
  }
  std::unique_ptr<machine::Event> record() override {
    auto event = std::make_unique<FarEvent>();
    push(event->reach());
    return event;
  }
  void wait(const machine::Event& event) override {
    push(dynamic_cast<const FarEvent&>(event).await());
  }
  void synchronize() override { record()->synchronize(); }
  // Delays work that is queued later.
  void hold(std::chrono::milliseconds time) {
    push([time] { std::this_thread::sleep_for(time); });
  }

 private:
  void push(std::function<void()> work) { worker_.push(std::move(work)); }

  const FarMemory& memory_;
  machine::QueueThread worker_;  // last, because it uses the others
};

class FarDevice final : public machine::Device {
 public:
  FarDevice() : Device(Kind::cuda) { stream_ = make_stream(); }
  ~FarDevice() override { stream_.reset(); }
  std::string description() const override { return "far"; }
  std::unique_ptr<machine::Stream> make_stream() override {
    return std::make_unique<FarStream>(*this, memory_);
  }
  FarStream& queue() { return static_cast<FarStream&>(*stream_); }

 private:
  void* do_allocate(std::size_t bytes) override { return memory_.take(bytes); }
  void do_free(void*, std::size_t) override {}
  FarMemory memory_;
};

}  // namespace zero::testing

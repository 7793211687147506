#include "machine/device/device.h"

#include <fmt/format.h>

#include <atomic>

#include "machine/base/error.h"
#include "machine/device/faults.h"
#include "machine/device/kernels.h"

namespace machine {

Stream::Stream(Device& device, std::unique_ptr<Kernels> kernels)
    : device_(device), kernels_(std::move(kernels)) {}
Stream::~Stream() = default;

void Stream::copy_rows(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                       std::size_t bytes, std::int64_t rows) {
  for (std::size_t row = 0; row < static_cast<std::size_t>(rows); ++row)
    copy(static_cast<std::byte*>(to) + row * to_pitch,
         static_cast<const std::byte*>(from) + row * from_pitch, bytes);
}

Device::Device(Kind kind) : kind_(kind) {}
Device::~Device() = default;

HostMemory& Device::pinned_memory() { return process_heap(); }

Memory Device::allocate(std::size_t bytes, Category category) {
  if (bytes == 0) return Memory(*this, nullptr, 0, category);
  void* data = nullptr;
  std::string why;
  try {
    if (!faults_ ||
        (bytes <= faults_->memory_bytes && ledger_.current() <= faults_->memory_bytes - bytes))
      data = do_allocate(bytes);
  } catch (const MachineError& error) {
    why = fmt::format("; {}", error.what());
  }
  if (!data) {
    throw MachineError(fmt::format("out of memory on {}: cannot allocate {} bytes of {}; already "
                                   "allocated: {} ({} in all categories){}; "
                                   "use a smaller case, more ranks, or a smaller --bytes",
                                   description(), bytes, name(category), ledger_.current(category),
                                   ledger_.current(), why),
                       Failure::Kind::out_of_memory);
  }
  ledger_.add(category, bytes);
  return Memory(*this, data, bytes, category);
}

Memory Device::adopt(void* data, std::size_t bytes, Category category,
                     std::function<void()> release) {
  adopted_[data] = std::move(release);
  ledger_.add(category, bytes);
  return Memory(*this, data, bytes, category);
}

void Device::take_back(void* data, std::size_t bytes) {
  const auto found = adopted_.find(data);
  if (found == adopted_.end()) return do_free(data, bytes);
  const std::function<void()> release = std::move(found->second);
  adopted_.erase(found);
  try {
    stream_->synchronize();
  } catch (const MachineError&) {
    // The device is lost. The next call reports it.
  }
  release();
}

namespace cuda {
namespace {

std::atomic<bool> asked{false};

}  // namespace

const Present& present() {
  asked = true;
  static const Present found = ask();
  return found;
}

bool used() { return asked; }

}  // namespace cuda
}  // namespace machine

#include "collectives/communicator/staging.h"

#include <unistd.h>

#include "machine/base/error.h"
#include "machine/device/arena/free_list.h"

namespace collectives {

using machine::Tensor;

Staging::~Staging() {
  for (auto& [key, held] : held_) {
    try {
      held.wait();
    } catch (const machine::MachineError&) {
      // The device is lost. The run already ends with that failure.
    }
  }
}

void Staging::Held::wait() {
  if (const auto event = std::exchange(used, nullptr)) event->synchronize();
}

// Pinned pages contain no other memory.
Tensor Staging::memory(int slot, const Tensor& tensor) {
  const machine::Dtype dtype = tensor.dtype();
  if (tensor.size() == 0) return Tensor(host_, dtype, tensor.shape(), machine::Category::buffers);
  const auto key = std::pair(slot, dtype);
  if (const auto found = held_.find(key); found != held_.end()) {
    found->second.wait();
    if (found->second.device != &tensor.device() || found->second.pages.size() < tensor.size())
      held_.erase(found);
  }
  Held& held = held_[key];
  if (!held.device) {
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    const std::size_t bytes = machine::round_up(tensor.bytes(), page);
    const auto elements = [&](std::size_t of) {
      return static_cast<std::int64_t>(of / machine::size_of(dtype));
    };
    const Tensor whole(host_, dtype, {elements(bytes + page)}, machine::Category::buffers);
    const std::size_t past = reinterpret_cast<std::uintptr_t>(whole.data()) % page;
    held.pages = whole.slice(elements((page - past) % page), {elements(bytes)});
    held.pinned = tensor.device().pin(held.pages.data(), bytes);
    held.device = &tensor.device();
  }
  return held.pages.slice(0, tensor.shape());
}

Tensor Staging::down(int slot, const Tensor& tensor) {
  const Tensor to = memory(slot, tensor);
  machine::Stream& stream = tensor.device().stream();
  stream.copy(to.data(), tensor.data(), tensor.bytes());
  stream.synchronize();
  return to;
}

void Staging::up(int slot, const Tensor& from, const Tensor& tensor) {
  machine::Stream& stream = tensor.device().stream();
  stream.copy(tensor.data(), from.data(), tensor.bytes());
  if (tensor.size() == 0) return;
  held_.at({slot, tensor.dtype()}).used = stream.record();
}

}  // namespace collectives

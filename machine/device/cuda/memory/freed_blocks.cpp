#include "machine/device/cuda/memory/freed_blocks.h"

#include <algorithm>
#include <utility>

// Memory is freed in destructors, so errors are not thrown here. They are from earlier calls, and
// the next call reports them.

namespace machine::cuda {

FreedBlocks::~FreedBlocks() {
  cudaSetDevice(device_);
  for (const Block& block : blocks_)
    for (cudaEvent_t event : block.events) cudaEventDestroy(event);
  for (cudaEvent_t event : unused_) cudaEventDestroy(event);
}

cudaEvent_t FreedBlocks::take_event() {
  cudaEvent_t event = nullptr;
  if (unused_.empty()) {
    cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  } else {
    event = unused_.back();
    unused_.pop_back();
  }
  return event;
}

bool FreedBlocks::keep(void* data, std::size_t bytes, std::span<const cudaStream_t> streams) {
  cudaSetDevice(device_);
  Block block{data, bytes, {}};
  for (cudaStream_t stream : streams) {
    if (cudaStreamQuery(stream) != cudaErrorNotReady) continue;
    cudaGetLastError();  // "not ready" is not an error
    cudaEvent_t const event = take_event();
    if (event && cudaEventRecord(event, stream) == cudaSuccess)
      block.events.push_back(event);
    else
      cudaStreamSynchronize(stream);  // no event is left
  }
  if (block.events.empty()) return false;
  blocks_.push_back(std::move(block));
  return true;
}

void FreedBlocks::give_oldest(const Give& give) {
  const Block block = std::move(blocks_.front());
  blocks_.pop_front();
  unused_.insert(unused_.end(), block.events.begin(), block.events.end());
  give(block.data, block.bytes);
}

void FreedBlocks::give_ended(const Give& give) {
  if (blocks_.empty()) return;
  cudaSetDevice(device_);
  const auto runs = [](cudaEvent_t event) { return cudaEventQuery(event) == cudaErrorNotReady; };
  while (!blocks_.empty() && std::ranges::none_of(blocks_.front().events, runs)) give_oldest(give);
  cudaGetLastError();
}

void FreedBlocks::give_in_order_of(cudaStream_t stream, const Give& give) {
  cudaSetDevice(device_);
  while (!blocks_.empty()) {
    for (cudaEvent_t event : blocks_.front().events) cudaStreamWaitEvent(stream, event, 0);
    give_oldest(give);
  }
}

void FreedBlocks::wait_for_oldest(const Give& give) {
  cudaSetDevice(device_);
  for (cudaEvent_t event : blocks_.front().events) cudaEventSynchronize(event);
  give_oldest(give);
}

}  // namespace machine::cuda

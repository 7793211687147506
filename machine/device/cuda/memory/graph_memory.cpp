#include "machine/device/cuda/memory/graph_memory.h"

#include <algorithm>
#include <utility>

#include "machine/device/cuda/runtime.h"

namespace machine::cuda {

GraphMemory::GraphMemory(int device, std::size_t least, Outside outside)
    : device_(device), least_(least), outside_(std::move(outside)) {}

std::shared_ptr<void> GraphMemory::begin(cudaStream_t stream) {
  outside_.make_room();
  stream_ = stream;
  begun_ = ++moment_;
  forked_.clear();
  joined_.clear();
  capturing_.reset(
      new Pool{.arenas = {least_, [this](std::size_t bytes) { return take_in_capture(bytes); },
                          outside_.give}});
  pools_.push_back(capturing_);
  return {nullptr, [this, pool = capturing_](void*) { end_of_graph(pool); }};
}

// A capture forbids allocations, unless the thread says that no captured work depends on them.
void* GraphMemory::take_in_capture(std::size_t bytes) const {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  SHARDMARK_CUDA(device_, cudaThreadExchangeStreamCaptureMode(&mode));
  const struct Restores {
    cudaStreamCaptureMode& mode;
    ~Restores() { cudaThreadExchangeStreamCaptureMode(&mode); }
  } restores{mode};
  return outside_.take(bytes);
}

void* GraphMemory::allocate(std::size_t bytes) {
  reuse_joined();
  void* data = capturing_->arenas.allocate(bytes);
  if (!data && !capturing_->waiting.empty()) {
    join_all();
    reuse_joined();
    data = capturing_->arenas.allocate(bytes);
  }
  if (data) capturing_->allocated[data] = ++moment_;
  return data;
}

bool GraphMemory::free(void* data, std::size_t bytes) {
  const auto owner = std::ranges::find_if(
      pools_, [&](const std::shared_ptr<Pool>& pool) { return pool->allocated.contains(data); });
  if (owner == pools_.end()) {
    if (capturing_) capturing_->outside.push_back({data, bytes, 0, {}});
    return capturing_ != nullptr;
  }
  Pool& pool = **owner;
  const std::uint64_t allocated = pool.allocated[data];
  pool.allocated.erase(data);
  Block block{data, bytes, ++moment_, {}};
  if (*owner == capturing_)
    for (const auto& [stream, moment] : forked_)
      if (moment > allocated) block.users.push_back(stream);
  if (block.users.empty())
    pool.arenas.free(data, bytes);
  else
    pool.waiting.push_back(std::move(block));
  erase_unused();
  return true;
}

void GraphMemory::wait(cudaStream_t stream, cudaStream_t other, std::uint64_t event) {
  if (!capturing_ || event < begun_ || stream == other) return;
  if (stream == stream_)
    joined_[other] = std::max(joined_[other], event);
  else if (other == stream_ || forked_.contains(other))
    forked_[stream] = ++moment_;
}

bool GraphMemory::has_joined(const Block& block) const {
  return std::ranges::all_of(block.users, [&](cudaStream_t user) {
    const auto joined = joined_.find(user);
    return joined != joined_.end() && joined->second > block.freed;
  });
}

void GraphMemory::reuse_joined() {
  std::erase_if(capturing_->waiting, [this](const Block& block) {
    const bool joined = has_joined(block);
    if (joined) capturing_->arenas.free(block.data, block.bytes);
    return joined;
  });
}

// Nothing else is left, so the captured work gets an order that it did not need.
void GraphMemory::join_all() {
  make_current(device_);
  for (const auto& [stream, moment] : forked_) {
    cudaEvent_t end = nullptr;
    SHARDMARK_CUDA(device_, cudaEventCreateWithFlags(&end, cudaEventDisableTiming));
    cudaError_t status = cudaEventRecord(end, stream);
    if (status == cudaSuccess) status = cudaStreamWaitEvent(stream_, end, 0);
    cudaEventDestroy(end);
    check(device_, "cudaStreamWaitEvent", status);
    joined_[stream] = ++moment_;
  }
}

void GraphMemory::end_of_graph(const std::shared_ptr<Pool>& pool) {
  pool->ended = true;
  for (const Block& block : std::exchange(pool->outside, {}))
    outside_.free(block.data, block.bytes);
  erase_unused();
}

void GraphMemory::erase_unused() {
  std::erase_if(pools_, [](const std::shared_ptr<Pool>& pool) {
    return pool->ended && pool->allocated.empty();
  });
}

}  // namespace machine::cuda

#pragma once
// Blocks of memory that were freed while streams had queued work that may still use them. A block
// waits here for events of these streams, so the host does not wait for the device.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <deque>
#include <functional>
#include <span>
#include <vector>

namespace machine::cuda {

class FreedBlocks {
 public:
  explicit FreedBlocks(int device) : device_(device) {}
  // Does not wait: the owner has waited for the streams.
  ~FreedBlocks();
  FreedBlocks(const FreedBlocks&) = delete;
  FreedBlocks& operator=(const FreedBlocks&) = delete;

  // Keeps the block until the work that the streams have queued ends. Returns false, and does not
  // keep it, if no stream has work.
  bool keep(void* data, std::size_t bytes, std::span<const cudaStream_t> streams);
  bool empty() const { return blocks_.empty(); }

  using Give = std::function<void(void* data, std::size_t bytes)>;
  // Gives blocks, the oldest first, up to the first one with work that has not ended.
  void give_ended(const Give& give);
  // Gives all blocks. Later work of `stream` starts after the work that uses them.
  void give_in_order_of(cudaStream_t stream, const Give& give);
  // Waits for the work that uses the oldest block, and gives the block.
  void wait_for_oldest(const Give& give);

 private:
  struct Block {
    void* data;
    std::size_t bytes;
    std::vector<cudaEvent_t> events;
  };
  cudaEvent_t take_event();
  void give_oldest(const Give& give);

  int device_;
  std::deque<Block> blocks_;
  std::vector<cudaEvent_t> unused_;
};

}  // namespace machine::cuda

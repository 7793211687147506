#pragma once
// The memory of a device's graphs: what is allocated while work is captured. Each launch of the
// graph uses it again, so it belongs to the graph until the graph ends. Within the capture, a freed
// block is taken again at once if only the device's stream can have used it. If another captured
// stream can, it is taken again after the device's stream has waited for that stream.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "machine/device/arena/arenas.h"

namespace machine::cuda {

class GraphMemory {
 public:
  // Memory outside of graphs.
  struct Outside {
    std::function<void()> make_room;         // gives the driver what is not used
    std::function<void*(std::size_t)> take;  // memory of the driver; null when exhausted
    std::function<void(void*)> give;         // gives the driver an arena
    std::function<void(void* data, std::size_t bytes)> free;
  };
  // least: minimum bytes of an arena (Arenas).
  GraphMemory(int device, std::size_t least, Outside outside);
  GraphMemory(const GraphMemory&) = delete;
  GraphMemory& operator=(const GraphMemory&) = delete;

  // A capture of the device's stream begins, and ends. The memory is given back when the result of
  // begin, which the graph keeps, and all blocks are freed.
  std::shared_ptr<void> begin(cudaStream_t stream);
  void end() { capturing_.reset(); }
  bool captures() const { return capturing_ != nullptr; }

  void* allocate(std::size_t bytes);  // during a capture; null when exhausted
  // Returns false if no graph uses the memory, so that others may use it again.
  bool free(void* data, std::size_t bytes);

  // The order of streams during a capture. Returns the number of an event that `stream` records.
  std::uint64_t record() { return ++moment_; }
  // `stream` waits for the event with this number, which `other` recorded.
  void wait(cudaStream_t stream, cudaStream_t other, std::uint64_t event);

 private:
  struct Block {
    void* data;
    std::size_t bytes;
    std::uint64_t freed;
    std::vector<cudaStream_t> users;  // other streams that may still use it
  };
  // The memory of one graph.
  struct Pool {
    Arenas arenas;
    std::map<void*, std::uint64_t> allocated{};  // when, by address
    std::vector<Block> waiting{};                // for their users
    std::vector<Block> outside{};                // allocated before the capture, and freed in it
    bool ended = false;                          // the graph
  };
  void* take_in_capture(std::size_t bytes) const;
  bool has_joined(const Block& block) const;
  void reuse_joined();
  void join_all();
  void end_of_graph(const std::shared_ptr<Pool>& pool);
  void erase_unused();

  int device_;
  std::size_t least_;
  Outside outside_;
  std::vector<std::shared_ptr<Pool>> pools_;
  std::shared_ptr<Pool> capturing_;
  cudaStream_t stream_ = nullptr;  // that is captured
  std::uint64_t moment_ = 0, begun_ = 0;
  // By other stream of the capture: when it last waited for work of the capture, and the last of
  // its events that stream_ has waited for.
  std::map<cudaStream_t, std::uint64_t> forked_, joined_;
};

}  // namespace machine::cuda

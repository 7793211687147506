#pragma once
// The present blocks of a layout as lists, for the host and CUDA kernels of block-sparse attention
// (machine/device/sparse/sparse_attention.h). Lists have no entry for an absent block.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "machine/device/flash_attention.h"
#include "machine/device/sparse/sparse_attention.h"

namespace machine::kernel {

// One list for every head and block of one side (queries or keys): the present blocks of the other
// side, ascending.
struct BlockList {
  std::vector<std::int32_t> first;  // [heads * blocks + 1]: where a list begins
  std::vector<std::int32_t> other;
};

struct BlockLists {
  std::int64_t heads = 0, blocks = 0, block = 0;
  BlockList keys_of_queries, queries_of_keys;

  explicit BlockLists(const BlockMask& mask);

  std::int64_t block_end(std::int64_t query) const { return (query / block + 1) * block; }
  // Calls run(first, end) for the maximal ranges of keys that a block of queries sees.
  template <class Run>
  void each_run(std::int64_t head, std::int64_t row, const Run& run) const {
    const std::int32_t* list = keys_of_queries.other.data();
    const auto at = static_cast<std::size_t>(head * blocks + row);
    const std::int32_t end = keys_of_queries.first[at + 1];
    for (std::int32_t i = keys_of_queries.first[at]; i < end;) {
      const std::int32_t first = list[i];
      std::int32_t last = first;
      while (++i < end && list[i] == last + 1) ++last;
      run(first * block, (last + 1) * block);
    }
  }
};

// The kernels of one layout on one device. SparseAttention checks the arguments. No result is
// empty.
class SparseKernels {
 public:
  virtual ~SparseKernels() = default;
  virtual void forward(const AttentionForward& call) = 0;
  virtual void backward(const AttentionBackward& call) = 0;
  virtual std::optional<std::int64_t> scores() const = 0;
};

}  // namespace machine::kernel

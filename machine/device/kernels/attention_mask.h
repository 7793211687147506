#pragma once
// The masks of blockwise attention, for the host and CUDA kernels
// (machine/device/flash_attention.h).

#include <cmath>
#include <cstdint>

#include "machine/device/flash_attention.h"
#include "machine/device/random.h"

namespace machine::kernel {

// Which probabilities dropout keeps, in all matrices of a call.
struct KeptProbabilities {
  std::uint64_t seed, least_kept;  // compared with the 32 bits of uniform(); 0: drops nothing
  std::int64_t first_matrix, matrices_apart, queries, keys;
  double factor;  // of the probabilities that are kept

  explicit KeptProbabilities(const AttentionForward& call)
      : seed(call.options.dropout.seed),
        least_kept(
            static_cast<std::uint64_t>(std::ceil(call.options.dropout.probability * 0x1p32))),
        first_matrix(call.options.dropout.first_matrix),
        matrices_apart(call.options.dropout.matrices_apart),
        queries(call.q.rows),
        keys(call.k.rows),
        factor(1 / (1 - call.options.dropout.probability)) {}

  SHARDMARK_BOTH bool drops() const { return least_kept > 0; }
  // Returns the index of the query's first key.
  SHARDMARK_BOTH std::int64_t row(std::int64_t sequence, std::int64_t head,
                                  std::int64_t query) const {
    return ((first_matrix + sequence * matrices_apart + head) * queries + query) * keys;
  }
  SHARDMARK_BOTH bool operator()(std::int64_t row, std::int64_t key) const {
    return philox(seed, static_cast<std::uint64_t>(row + key))[0] >= least_kept;
  }
};

}  // namespace machine::kernel

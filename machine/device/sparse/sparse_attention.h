#pragma once
// Softmax attention over the present blocks of a layout: forward and backward of
// machine/device/flash_attention.h, where a query sees a key only if their block is present. Child
// et al. 2019, arXiv:1904.10509; the layouts are those of DeepSpeed's `sparse_attention`.
//
//   SparseAttention attention(device, {heads, sequence / 16, 16, layout.present});
//   attention.forward(q, k, v, {.scale = 0.125, .causal = false}, out, log_sum_exp);
//   attention.backward(q, k, v, options, out, log_sum_exp, d_out, d_q, d_k, d_v);
//
// Queries and keys of a call have blocks * block rows, and q has the layout's heads. A group of
// heads may share a head of keys. An absent block costs no product and no memory. causal: a query
// of a present block sees its keys up to its own index. Options, order of sums and log_sum_exp are
// those of flash_attention. A query without keys has out 0 and log_sum_exp minus infinity. If all
// blocks are present, the host gives the bits of flash_attention.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "machine/device/device.h"
#include "machine/device/flash_attention.h"
#include "machine/device/gemm.h"
#include "machine/device/tensor.h"

namespace machine {

namespace kernel {
class SparseKernels;
}

struct BlockMask {
  std::int64_t heads = 0, blocks = 0, block = 0;  // block: rows of a block, a multiple of 16
  std::span<const std::uint8_t> present;          // [heads, blocks of queries, blocks of keys]
};

class SparseAttention {
 public:
  // Copies the mask as lists of present blocks. On a CUDA device the lists are scratch of the
  // kernels, which no ledger counts. Throws std::logic_error for a mask that does not fit its
  // sizes.
  SparseAttention(Device& device, const BlockMask& mask);
  ~SparseAttention();
  SparseAttention(const SparseAttention&) = delete;
  SparseAttention& operator=(const SparseAttention&) = delete;

  // Run in device.stream(). Throw like flash_attention, also if rows or heads differ from the
  // mask's.
  void forward(const Matrix& q, const Matrix& k, const Matrix& v, const AttentionOptions& options,
               const Matrix& out, const Tensor& log_sum_exp);
  void backward(const Matrix& q, const Matrix& k, const Matrix& v, const AttentionOptions& options,
                const Matrix& out, const Tensor& log_sum_exp, const Matrix& d_out,
                const Matrix& d_q, const Matrix& d_k, const Matrix& d_v);

  // Returns the pairs of a query and a key in the blocks that all calls have processed, or nothing
  // if the device does not count them. A causal block counts with all its pairs.
  std::optional<std::int64_t> scores() const;

 private:
  void check(const AttentionForward& call) const;

  Device& device_;
  std::int64_t heads_, rows_;
  std::unique_ptr<kernel::SparseKernels> kernels_;
};

}  // namespace machine

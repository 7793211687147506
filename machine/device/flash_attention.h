#pragma once
// Blockwise softmax attention that never stores a [queries, keys] matrix: forward after Dao et al.
// 2022, arXiv:2205.14135, with the loops of Dao 2023, arXiv:2307.08691.
//
//   out = softmax(scale q kᵀ) v,   log_sum_exp = log of the sum of exp(scale q kᵀ) over keys
//
// q, out [queries, head], k, v [keys, head], in batches [sequences, heads]. k and v may have fewer
// heads, a divisor of q's (grouped queries: Ainslie et al. 2023, arXiv:2305.13245). Head h of q
// then uses head h / (heads / kv_heads). All matrices have one floating dtype and contiguous
// columns, so a layer passes its interleaved heads without a copy. At least 1 key; head at most
// 256; other lengths are arbitrary. causal: a query sees the keys up to its own index. lengths: a
// query sees the first keys of its sequence only. The out of a query without keys is zero, and its
// log_sum_exp is minus infinity.
//
// Dropout (Srivastava et al. 2014, JMLR 15) multiplies a probability by 0 or 1 / (1 - probability).
// The sum of exp is that of all keys. Backward draws the same mask again.
//
// log_sum_exp [sequences * heads, queries] is float (double for double). Backward recomputes the
// probabilities from it. The order of sums is fixed by shapes only, so results are bitwise equal in
// every run and for any number of threads. Sums accumulate in float (double for double). On tensor
// cores and in bfloat16 or half, probabilities and their gradients are rounded to the dtype before
// they are multiplied.
//
//   flash_attention(stream, q, k, v, {.scale = 0.125}, out, log_sum_exp);

#include <cstdint>

#include "machine/device/device.h"
#include "machine/device/gemm.h"
#include "machine/device/tensor.h"

namespace machine {

// Drops the element of a query and a key if uniform(seed, index) < probability, as
// Kernels::dropout.
//   index = ((first_matrix + sequence * matrices_apart + head) * queries + query) * keys + key
struct AttentionDropout {
  double probability = 0;
  std::uint64_t seed = 0;
  std::int64_t first_matrix = 0;    // of the first sequence and head of this call
  std::int64_t matrices_apart = 0;  // from sequence to sequence: all heads of the model
};

struct AttentionOptions {
  double scale = 1;
  bool causal = true;
  const std::int32_t* lengths = nullptr;  // [sequences], in memory that the device reads; or all
  AttentionDropout dropout{};
};

struct AttentionForward {
  Matrix q, k, v;
  AttentionOptions options;
  Matrix out;
  Tensor log_sum_exp;
};

struct AttentionBackward {
  AttentionForward forward;  // the inputs and outputs of the forward pass
  Matrix d_out, d_q, d_k, d_v;
};

// Returns why the device of the stream cannot compute attention with heads of this size, or an
// empty text. Only the shared memory of a CUDA device limits it.
std::string why_not_flash_attention(const Stream& stream, Dtype dtype, std::int64_t head);

// Throws std::logic_error if extents, dtypes or devices disagree, and MachineError with the text of
// why_not_flash_attention.
void flash_attention(Stream& stream, const Matrix& q, const Matrix& k, const Matrix& v,
                     const AttentionOptions& options, const Matrix& out, const Tensor& log_sum_exp);

// Overwrites d_q, d_k and d_v. They must not share memory with an input.
void flash_attention_backward(Stream& stream, const Matrix& q, const Matrix& k, const Matrix& v,
                              const AttentionOptions& options, const Matrix& out,
                              const Tensor& log_sum_exp, const Matrix& d_out, const Matrix& d_q,
                              const Matrix& d_k, const Matrix& d_v);

}  // namespace machine

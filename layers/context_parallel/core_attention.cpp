#include "layers/context_parallel/core_attention.h"

#include "machine/base/error.h"

namespace layers {

using machine::Matrix;
using machine::Tensor;

void CoreAttention::check() const {
  SHARDMARK_CHECK(placement.ranks, ==, cp.size());
  SHARDMARK_CHECK(kv_heads, >=, 1);
  SHARDMARK_CHECK(heads % kv_heads, ==, 0);
}

Matrix heads_of(const CoreAttention& attention, const Tensor& tensor, std::int64_t first,
                std::int64_t count) {
  const std::int64_t width = tensor.cols(), rows = tensor.rows() / attention.sequences;
  Matrix heads = machine::matrix(tensor);
  heads.data = tensor.slice(first * width, {count, width}).data();
  heads.rows = count;
  heads.cols = attention.head;
  heads.batch = {attention.sequences, width / attention.head};
  heads.batch_stride = {rows * width, attention.head};
  return heads;
}

void attend_alone(const CoreAttention& attention, const Attended& tensors) {
  const auto all = [&](const Tensor& tensor) {
    return heads_of(attention, tensor, 0, attention.rows());
  };
  flash_attention(attention.stream(), all(tensors.q), all(tensors.k), all(tensors.v),
                  {attention.scale, attention.causal}, all(tensors.out), tensors.log_sum_exp);
}

void attend_alone_backward(const CoreAttention& attention, const Attended& tensors,
                           const Tensor& d_out, const AttentionGradients& gradients) {
  const auto all = [&](const Tensor& tensor) {
    return heads_of(attention, tensor, 0, attention.rows());
  };
  flash_attention_backward(attention.stream(), all(tensors.q), all(tensors.k), all(tensors.v),
                           {attention.scale, attention.causal}, all(tensors.out),
                           tensors.log_sum_exp, all(d_out), all(gradients.d_q), all(gradients.d_k),
                           all(gradients.d_v));
}

}  // namespace layers

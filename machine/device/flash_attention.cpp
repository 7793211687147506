#include "machine/device/flash_attention.h"

#include <fmt/format.h>

#include "machine/base/error.h"
#include "machine/device/kernels.h"
#include "machine/device/kernels/checks.h"

namespace machine {
namespace {

constexpr std::int64_t largest_head = 256;

void check(const Stream& stream, const AttentionForward& call) {
  const Matrix &q = call.q, &k = call.k;
  kernel::check_heads("flash_attention: q and out", q, {&call.out});
  kernel::check_heads("flash_attention: k and v", k, {&call.v});
  if (!has_every_kernel(q.dtype))
    throw std::logic_error(fmt::format("flash_attention: unsupported dtype {}", name(q.dtype)));
  SHARDMARK_CHECK(name(k.dtype), ==, name(q.dtype));
  SHARDMARK_CHECK(k.cols, ==, q.cols);
  SHARDMARK_CHECK(k.batch[0], ==, q.batch[0]);
  SHARDMARK_CHECK(k.batch[1], >=, 1);
  SHARDMARK_CHECK(q.batch[1] % k.batch[1], ==, 0);
  SHARDMARK_CHECK(k.rows, >=, 1);
  SHARDMARK_CHECK(q.cols, >=, 1);
  SHARDMARK_CHECK(q.cols, <=, largest_head);
  kernel::check_probability("flash_attention", call.options.dropout.probability);
  kernel::check_kind(stream.device().kind(), {&call.log_sum_exp});
  kernel::check_dtypes(kernel::sum_dtype(q.dtype), {&call.log_sum_exp});
  kernel::check_sizes(q.batch[0] * q.batch[1] * q.rows, {&call.log_sum_exp});
  if (const std::string why = why_not_flash_attention(stream, q.dtype, q.cols); !why.empty())
    throw MachineError(why);
}

bool empty(const Matrix& matrix) { return matrix.rows * matrix.batch[0] * matrix.batch[1] == 0; }

}  // namespace

std::string why_not_flash_attention(const Stream& stream, Dtype dtype, std::int64_t head) {
  return stream.kernels().why_not_attention(dtype, head);
}

void flash_attention(Stream& stream, const Matrix& q, const Matrix& k, const Matrix& v,
                     const AttentionOptions& options, const Matrix& out,
                     const Tensor& log_sum_exp) {
  const AttentionForward call{q, k, v, options, out, log_sum_exp};
  check(stream, call);
  if (!empty(q)) stream.kernels().do_attention(call);
}

void flash_attention_backward(Stream& stream, const Matrix& q, const Matrix& k, const Matrix& v,
                              const AttentionOptions& options, const Matrix& out,
                              const Tensor& log_sum_exp, const Matrix& d_out, const Matrix& d_q,
                              const Matrix& d_k, const Matrix& d_v) {
  const AttentionBackward call{{q, k, v, options, out, log_sum_exp}, d_out, d_q, d_k, d_v};
  check(stream, call.forward);
  kernel::check_heads("flash_attention_backward: q, d_out and d_q", q, {&d_out, &d_q});
  kernel::check_heads("flash_attention_backward: k, d_k and d_v", k, {&d_k, &d_v});
  if (!empty(k)) stream.kernels().do_attention_backward(call);
}

}  // namespace machine

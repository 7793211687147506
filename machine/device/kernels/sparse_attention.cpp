#include "machine/device/sparse_attention.h"

#include <iterator>
#include <string>
#include <utility>

#include "machine/base/error.h"
#include "machine/device/cuda/sparse/sparse_attention.h"
#include "machine/device/host/sparse_attention.h"
#include "machine/device/kernels/block_lists.h"
#include "machine/device/kernels/checks.h"

namespace machine {
namespace {

constexpr std::int64_t longest_head = 256;

template <class Present>
kernel::BlockList list_of(const BlockMask& mask, const Present& present) {
  kernel::BlockList list;
  list.first.push_back(0);
  for (std::int64_t head = 0; head < mask.heads; ++head)
    for (std::int64_t own = 0; own < mask.blocks; ++own) {
      for (std::int64_t other = 0; other < mask.blocks; ++other)
        if (present(head * mask.blocks * mask.blocks, own, other))
          list.other.push_back(static_cast<std::int32_t>(other));
      list.first.push_back(static_cast<std::int32_t>(list.other.size()));
    }
  return list;
}

bool empty(const Matrix& matrix) { return matrix.rows * matrix.batch[0] * matrix.batch[1] == 0; }

kernel::BlockLists lists_of(const BlockMask& mask) {
  SHARDMARK_CHECK(mask.heads, >=, 1);
  SHARDMARK_CHECK(mask.blocks, >=, 1);
  SHARDMARK_CHECK(mask.block, >=, 16);
  SHARDMARK_CHECK(mask.block % 16, ==, 0);
  SHARDMARK_CHECK(std::ssize(mask.present), ==, mask.heads * mask.blocks * mask.blocks);
  return kernel::BlockLists(mask);
}

}  // namespace

kernel::BlockLists::BlockLists(const BlockMask& mask)
    : heads(mask.heads), blocks(mask.blocks), block(mask.block) {
  const auto at = [&](std::int64_t first, std::int64_t query, std::int64_t key) {
    return mask.present[static_cast<std::size_t>(first + query * mask.blocks + key)] != 0;
  };
  keys_of_queries = list_of(mask, at);
  queries_of_keys = list_of(mask, [&](std::int64_t first, std::int64_t key, std::int64_t query) {
    return at(first, query, key);
  });
}

SparseAttention::SparseAttention(Device& device, const BlockMask& mask)
    : device_(device), heads_(mask.heads), rows_(mask.blocks * mask.block) {
  kernel::BlockLists lists = lists_of(mask);
  kernels_ = device.kind() == Device::Kind::host
                 ? host::make_sparse_kernels(device, std::move(lists))
                 : cuda::make_sparse_kernels(device, lists);
}

SparseAttention::~SparseAttention() = default;

void SparseAttention::check(const AttentionForward& call) const {
  const Matrix &q = call.q, &k = call.k;
  kernel::check_heads("sparse_attention: q and out", q, {&call.out});
  kernel::check_heads("sparse_attention: k and v", k, {&call.v});
  if (!has_every_kernel(q.dtype))
    throw std::logic_error("sparse_attention: unsupported dtype " + std::string(name(q.dtype)));
  SHARDMARK_CHECK(name(k.dtype), ==, name(q.dtype));
  SHARDMARK_CHECK(q.rows, ==, rows_);
  SHARDMARK_CHECK(k.rows, ==, rows_);
  SHARDMARK_CHECK(q.batch[1], ==, heads_);
  SHARDMARK_CHECK(k.batch[0], ==, q.batch[0]);
  SHARDMARK_CHECK(k.batch[1], >=, 1);
  SHARDMARK_CHECK(q.batch[1] % k.batch[1], ==, 0);
  SHARDMARK_CHECK(k.cols, ==, q.cols);
  SHARDMARK_CHECK(q.cols, >=, 1);
  SHARDMARK_CHECK(q.cols, <=, longest_head);
  kernel::check_probability("sparse_attention", call.options.dropout.probability);
  kernel::check_kind(device_.kind(), {&call.log_sum_exp});
  kernel::check_dtypes(kernel::sum_dtype(q.dtype), {&call.log_sum_exp});
  kernel::check_sizes(q.batch[0] * q.batch[1] * q.rows, {&call.log_sum_exp});
  const std::string why = why_not_flash_attention(device_.stream(), q.dtype, q.cols);
  if (!why.empty()) throw MachineError(why);
}

void SparseAttention::forward(const Matrix& q, const Matrix& k, const Matrix& v,
                              const AttentionOptions& options, const Matrix& out,
                              const Tensor& log_sum_exp) {
  const AttentionForward call{q, k, v, options, out, log_sum_exp};
  check(call);
  if (!empty(q)) kernels_->forward(call);
}

void SparseAttention::backward(const Matrix& q, const Matrix& k, const Matrix& v,
                               const AttentionOptions& options, const Matrix& out,
                               const Tensor& log_sum_exp, const Matrix& d_out, const Matrix& d_q,
                               const Matrix& d_k, const Matrix& d_v) {
  const AttentionBackward call{{q, k, v, options, out, log_sum_exp}, d_out, d_q, d_k, d_v};
  check(call.forward);
  kernel::check_heads("sparse_attention backward: q, d_out and d_q", q, {&d_out, &d_q});
  kernel::check_heads("sparse_attention backward: k, d_k and d_v", k, {&d_k, &d_v});
  if (!empty(k)) kernels_->backward(call);
}

std::optional<std::int64_t> SparseAttention::scores() const { return kernels_->scores(); }

}  // namespace machine

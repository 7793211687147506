#include "layers/context_parallel/partial_attention.h"

#include <limits>

namespace layers {

using machine::Category;
using machine::Matrix;
using machine::Tensor;

namespace {

// Returns columns [first, first + count) of log_sum_exp [sequences * heads, rows].
Matrix columns_of(const Tensor& log_sum_exp, std::int64_t first, std::int64_t count) {
  Matrix columns = machine::matrix(log_sum_exp);
  columns.data = log_sum_exp.slice(first, {count}).data();
  columns.cols = count;
  return columns;
}

// Returns the start of a buffer for the queries of a tile, packed.
Tensor packed(const CoreAttention& attention, const Tensor& buffer, std::int64_t rows) {
  return buffer.slice(0, {attention.sequences * rows, buffer.cols()});
}
Tensor packed_sums(const CoreAttention& attention, const Tensor& buffer, std::int64_t rows) {
  return buffer.slice(0, {attention.sequences * attention.heads, rows});
}

Tensor make_sums(const CoreAttention& attention, std::int64_t width) {
  Tensor sums = attention.sums({attention.tokens(), width}, Category::buffers);
  attention.kernels().fill(sums, 0);
  return sums;
}

Tensor make_log_sum_exp(const CoreAttention& attention) {
  return attention.sums({attention.sequences * attention.heads, attention.rows()},
                        Category::buffers);
}

}  // namespace

TensorPair make_pair_of(const CoreAttention& attention, machine::Dtype dtype, std::int64_t tokens) {
  return {Tensor(attention.device, dtype, {2 * tokens, attention.kv_width()}, Category::buffers),
          attention.kv_width()};
}

PartialOutput::PartialOutput(const CoreAttention& attention, const Tensor& log_sum_exp)
    : attention_(attention),
      log_sum_exp_(log_sum_exp),
      sum_(make_sums(attention, attention.width())),
      part_(attention.tensor({attention.tokens(), attention.width()}, Category::buffers)),
      part_log_sum_exp_(make_log_sum_exp(attention)) {
  attention.kernels().fill(log_sum_exp_, -std::numeric_limits<double>::infinity());
}

void PartialOutput::add(const Tensor& q, const Tensor& k, const Tensor& v, const Tile& tile) const {
  const CoreAttention& a = attention_;
  const Matrix part = heads_of(a, packed(a, part_, tile.queries), 0, tile.queries);
  const Tensor part_log_sum_exp = packed_sums(a, part_log_sum_exp_, tile.queries);
  flash_attention(a.stream(), heads_of(a, q, tile.query, tile.queries),
                  heads_of(a, k, tile.key, tile.keys), heads_of(a, v, tile.key, tile.keys),
                  {a.scale, tile.causal}, part, part_log_sum_exp);
  a.kernels().merge_attention(part, machine::matrix(part_log_sum_exp),
                              heads_of(a, sum_, tile.query, tile.queries),
                              columns_of(log_sum_exp_, tile.query, tile.queries));
}

void PartialOutput::store(const Tensor& out) const { attention_.kernels().cast(sum_, out); }

PartialGradients::PartialGradients(const CoreAttention& attention)
    : attention_(attention),
      sum_(make_sums(attention, attention.width())),
      part_(attention.tensor({attention.tokens(), attention.width()}, Category::buffers)),
      part_log_sum_exp_(make_log_sum_exp(attention)),
      of_keys_(make_pair_of(attention, attention.dtype, attention.most_tokens())) {}

PartialGradients::OfKeys PartialGradients::add(const Attended& own, const Tensor& k,
                                               const Tensor& v, const Tensor& d_out,
                                               const Tile& tile) const {
  const CoreAttention& a = attention_;
  Tensor log_sum_exp = own.log_sum_exp;
  if (tile.queries < a.rows()) {  // the kernel reads packed rows
    log_sum_exp = packed_sums(a, part_log_sum_exp_, tile.queries);
    const Matrix from = columns_of(own.log_sum_exp, tile.query, tile.queries);
    const std::size_t size = size_of(from.dtype), bytes = log_sum_exp.row_range(0, 1).bytes();
    a.stream().copy_rows(log_sum_exp.data(), bytes, from.data,
                         static_cast<std::size_t>(from.row_stride) * size, bytes, from.rows);
  }
  const auto queries = [&](const Tensor& tensor) {
    return heads_of(a, tensor, tile.query, tile.queries);
  };
  const auto keys = [&](const Tensor& tensor) { return heads_of(a, tensor, tile.key, tile.keys); };
  const Tensor d_q = packed(a, part_, tile.queries);
  const OfKeys part{of_keys_.first(a.sequences * tile.keys),
                    of_keys_.second(a.sequences * tile.keys)};
  flash_attention_backward(a.stream(), queries(own.q), keys(k), keys(v), {a.scale, tile.causal},
                           queries(own.out), log_sum_exp, queries(d_out),
                           heads_of(a, d_q, 0, tile.queries), heads_of(a, part.d_k, 0, tile.keys),
                           heads_of(a, part.d_v, 0, tile.keys));
  add_rows(a, d_q, tile.query, sum_);
  return part;
}

void PartialGradients::store(const Tensor& d_q) const { attention_.kernels().cast(sum_, d_q); }

void add_rows(const CoreAttention& attention, const Tensor& part, std::int64_t first,
              const Tensor& sum) {
  const std::int64_t count = part.rows() / attention.sequences,
                     rows = sum.rows() / attention.sequences;
  for (std::int64_t s = 0; s < attention.sequences; ++s)
    attention.kernels().accumulate(part.row_range(s * count, count),
                                   sum.row_range(s * rows + first, count));
}

void add_of_keys(const CoreAttention& attention, const PartialGradients::OfKeys& part,
                 const Tile& tile, const TensorPair& sums, std::int64_t tokens) {
  add_rows(attention, part.d_k, tile.key, sums.first(tokens));
  add_rows(attention, part.d_v, tile.key, sums.second(tokens));
}

}  // namespace layers

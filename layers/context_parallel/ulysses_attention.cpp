#include "layers/context_parallel/ulysses_attention.h"

#include <algorithm>

#include "layers/context_parallel/ring_attention.h"
#include "machine/base/error.h"

namespace layers {

using collectives::ChunkRange;
using machine::Category;
using machine::Matrix;
using machine::Tensor;

namespace {

// Returns heads [first, first + count) of [tokens, heads * head] as one batch.
Matrix some_heads(const CoreAttention& attention, const Tensor& tensor, std::int64_t first,
                  std::int64_t count) {
  Matrix heads = heads_of(attention, tensor, 0, tensor.rows() / attention.sequences);
  heads.data = tensor.slice(first * attention.head, {attention.head}).data();
  heads.batch[1] = count;
  return heads;
}

// Copies rows of `to` and `from`, both given with their strides in elements.
struct Rows {
  void* data;
  std::int64_t stride;
};
void copy(const CoreAttention& attention, Rows to, Rows from, std::int64_t columns,
          std::int64_t rows) {
  const std::size_t size = size_of(attention.dtype);
  const auto bytes = [size](std::int64_t elements) {
    return static_cast<std::size_t>(elements) * size;
  };
  if (rows > 0 && columns > 0)
    attention.stream().copy_rows(to.data, bytes(to.stride), from.data, bytes(from.stride),
                                 bytes(columns), rows);
}
Rows rows_at(const Tensor& tensor, std::int64_t offset, std::int64_t stride) {
  return {tensor.slice(offset, {0}).data(), stride};
}

// Calls move(first row of the whole, stride, first row of the part, rows) for the rows of a rank.
template <class Move>
void each_segment(const CoreAttention& attention, int rank, const Move& move) {
  const SequencePlacement& placement = attention.placement;
  for (std::int64_t s = 0; s < attention.sequences; ++s)
    for (const Segment& segment : placement.segments(rank))
      move(s * placement.sequence + segment.global, segment.stride,
           s * placement.rows(rank) + segment.local, segment.count);
}

}  // namespace

UlyssesAttention::UlyssesAttention(const CoreAttention& attention, const CoreAttention* ring)
    : attention_(attention),
      ring_(ring),
      split_{attention.heads, attention.kv_heads, attention.cp.size()} {
  attention.check();
  if (ring) {
    SHARDMARK_CHECK(split_.calls(attention.cp.rank()).size(), ==, 1U);
    SHARDMARK_CHECK(ring->rows(), ==, attention.placement.sequence);
  }
  SHARDMARK_CHECK(attention.heads, >=, attention.cp.size());
  layers_ = split_.layers();
  copies_ = *std::ranges::max_element(layers_) + 1;
  std::vector<ChunkRange> queries, keys;
  for (int rank = 0; rank < split_.ranks; ++rank) {
    queries.push_back(split_.queries(rank));
    keys.push_back(split_.keys(rank));
  }
  queries_ = make_route(queries);
  keys_ = make_route(keys);
}

UlyssesAttention::Route UlyssesAttention::make_route(const std::vector<ChunkRange>& heads) const {
  const int ranks = split_.ranks;
  std::vector<std::int64_t> to_heads, to_sequence;
  for (int from = 0; from < ranks; ++from)
    for (int to = 0; to < ranks; ++to) {
      const auto elements = [&](int tokens_of, int heads_of_rank) {
        return attention_.tokens(tokens_of) *
               heads[static_cast<std::size_t>(heads_of_rank)].size() * attention_.head;
      };
      to_heads.push_back(elements(from, to));
      to_sequence.push_back(elements(to, from));
    }
  return {heads, std::make_shared<const collectives::TrafficMatrix>(ranks, to_heads),
          std::make_shared<const collectives::TrafficMatrix>(ranks, to_sequence)};
}

std::int64_t UlyssesAttention::own_width(const Route& route) const {
  return route.heads[static_cast<std::size_t>(attention_.cp.rank())].size() * attention_.head;
}

Tensor UlyssesAttention::make_whole(const Route& route, Category category) const {
  return attention_.tensor({attention_.sequences * attention_.placement.sequence, own_width(route)},
                           category);
}

Tensor UlyssesAttention::to_heads(const Tensor& part, const Route& route, Category category) const {
  const CoreAttention& a = attention_;
  const int rank = a.cp.rank();
  Tensor whole = make_whole(route, category);
  const Tensor leaving = a.tensor({route.to_heads->sent_by(rank)}, Category::buffers),
               arrived = a.tensor({route.to_heads->received_by(rank)}, Category::buffers);
  for (int to = 0; to < split_.ranks; ++to) {
    const ChunkRange heads = route.heads[static_cast<std::size_t>(to)];
    const std::int64_t width = heads.size() * a.head;
    copy(a, rows_at(leaving, route.to_heads->input_begin(rank, to), width),
         rows_at(part, std::min(heads.begin * a.head, part.size()), part.cols()), width,
         part.rows());
  }
  a.cp.all_to_all_v(leaving, arrived, route.to_heads);
  const std::int64_t width = own_width(route);
  for (int from = 0; from < split_.ranks; ++from) {
    const std::int64_t begin = route.to_heads->output_begin(rank, from);
    each_segment(
        a, from,
        [&](std::int64_t row, std::int64_t stride, std::int64_t of_part, std::int64_t count) {
          copy(a, rows_at(whole, row * width, stride * width),
               rows_at(arrived, begin + of_part * width, width), width, count);
        });
  }
  return whole;
}

Tensor UlyssesAttention::exchange_to_sequence(const Tensor& whole, const Route& route) const {
  const CoreAttention& a = attention_;
  const int rank = a.cp.rank();
  const std::int64_t width = own_width(route);
  const Tensor leaving = a.tensor({route.to_sequence->sent_by(rank)}, Category::buffers);
  Tensor arrived = a.tensor({route.to_sequence->received_by(rank)}, Category::buffers);
  for (int to = 0; to < split_.ranks; ++to) {
    const std::int64_t begin = route.to_sequence->input_begin(rank, to);
    each_segment(
        a, to,
        [&](std::int64_t row, std::int64_t stride, std::int64_t of_part, std::int64_t count) {
          copy(a, rows_at(leaving, begin + of_part * width, width),
               rows_at(whole, row * width, stride * width), width, count);
        });
  }
  a.cp.all_to_all_v(leaving, arrived, route.to_sequence);
  return arrived;
}

void UlyssesAttention::place_heads(const Tensor& arrived, const Route& route, int layer,
                                   const Tensor& part) const {
  const CoreAttention& a = attention_;
  for (int from = 0; from < split_.ranks; ++from) {
    if (layer >= 0 && layers_[static_cast<std::size_t>(from)] != layer) continue;
    const ChunkRange heads = route.heads[static_cast<std::size_t>(from)];
    const std::int64_t width = heads.size() * a.head;
    copy(a, rows_at(part, std::min(heads.begin * a.head, part.size()), part.cols()),
         rows_at(arrived, route.to_sequence->output_begin(a.cp.rank(), from), width), width,
         part.rows());
  }
}

void UlyssesAttention::to_sequence(const Tensor& whole, const Route& route,
                                   const Tensor& part) const {
  place_heads(exchange_to_sequence(whole, route), route, -1, part);
}

void UlyssesAttention::sum_to_sequence(const Tensor& whole, const Tensor& part) const {
  if (copies_ == 1) return to_sequence(whole, keys_, part);
  const CoreAttention& a = attention_;
  const Tensor arrived = exchange_to_sequence(whole, keys_);
  const Tensor layer = a.tensor(part.shape(), Category::buffers),
               sum = a.sums(part.shape(), Category::buffers);
  a.kernels().fill(sum, 0);
  for (int i = 0; i < copies_; ++i) {
    a.kernels().fill(layer, 0);  // a layer need not have every head
    place_heads(arrived, keys_, i, layer);
    a.kernels().accumulate(layer, sum);
  }
  a.kernels().cast(sum, part);
}

std::vector<HeadSplit::Call> UlyssesAttention::calls() const {
  return ring_ ? std::vector<HeadSplit::Call>() : split_.calls(attention_.cp.rank());
}

void UlyssesAttention::forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                               Saved& saved, Category kept) const {
  const CoreAttention& a = attention_;
  const std::int64_t positions = a.placement.sequence;
  const bool alone = split_.ranks == 1;
  const auto whole = [&](const Tensor& part, const Route& route) {
    return alone ? part : to_heads(part, route, kept);
  };
  saved.q = whole(q, queries_);
  saved.k = whole(k, keys_);
  saved.v = whole(v, keys_);
  saved.out = alone ? out : make_whole(queries_, kept);
  saved.log_sum_exp = a.sums({a.sequences * split_.queries(a.cp.rank()).size(), positions}, kept);
  if (ring_) ring_attention(*ring_, saved);
  for (const HeadSplit::Call& call : calls())
    flash_attention(a.stream(), some_heads(a, saved.q, call.query, call.queries),
                    some_heads(a, saved.k, call.key, call.keys),
                    some_heads(a, saved.v, call.key, call.keys), {a.scale, a.causal},
                    some_heads(a, saved.out, call.query, call.queries),
                    saved.log_sum_exp.slice(a.sequences * call.query * positions,
                                            {a.sequences * call.queries * positions}));
  if (!alone) to_sequence(saved.out, queries_, out);
}

void UlyssesAttention::backward(const Tensor& d_out, const AttentionGradients& gradients,
                                Saved& saved) const {
  const CoreAttention& a = attention_;
  const std::int64_t positions = a.placement.sequence;
  const bool alone = split_.ranks == 1;
  Tensor whole_d_out = alone ? d_out : to_heads(d_out, queries_, Category::buffers);
  const auto make = [&](const Route& route, const Tensor& part) {
    return alone ? part : make_whole(route, Category::buffers);
  };
  Tensor d_q = make(queries_, gradients.d_q), d_k = make(keys_, gradients.d_k),
         d_v = make(keys_, gradients.d_v);
  if (ring_) ring_attention_backward(*ring_, saved, whole_d_out, {d_q, d_k, d_v});
  for (const HeadSplit::Call& call : calls()) {
    const auto queries = [&](const Tensor& tensor) {
      return some_heads(a, tensor, call.query, call.queries);
    };
    const auto keys = [&](const Tensor& tensor) {
      return some_heads(a, tensor, call.key, call.keys);
    };
    flash_attention_backward(a.stream(), queries(saved.q), keys(saved.k), keys(saved.v),
                             {a.scale, a.causal}, queries(saved.out),
                             saved.log_sum_exp.slice(a.sequences * call.query * positions,
                                                     {a.sequences * call.queries * positions}),
                             queries(whole_d_out), queries(d_q), keys(d_k), keys(d_v));
  }
  whole_d_out = Tensor();
  saved = Saved();
  if (alone) return;
  to_sequence(d_q, queries_, gradients.d_q);
  d_q = Tensor();
  sum_to_sequence(d_k, gradients.d_k);
  d_k = Tensor();
  sum_to_sequence(d_v, gradients.d_v);
}

}  // namespace layers

#include "layers/context_parallel/head_exchange.h"

#include <algorithm>

#include "machine/base/error.h"

namespace layers {

using collectives::ChunkRange;
using machine::Category;
using machine::Matrix;
using machine::Tensor;

namespace {

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
  return {tensor.slice(std::min(offset, tensor.size()), {0}).data(), stride};
}

// Calls move(first row of the whole, stride, first row of the part, rows) for the rows of a rank.
template <class Move>
void each_segment(std::int64_t sequences, const SequencePlacement& positions, int rank,
                  const Move& move) {
  for (std::int64_t s = 0; s < sequences; ++s)
    for (const Segment& segment : positions.segments(rank))
      move(s * positions.sequence + segment.global, segment.stride,
           s * positions.rows(rank) + segment.local, segment.count);
}

// Calls move(first row of the tensor, first row of the run, rows) for the runs of `run` rows that
// begin at first_row of each sequence of a tensor.
template <class Move>
void each_run(std::int64_t sequences, const Tensor& tensor, std::int64_t first_row,
              std::int64_t run, const Move& move) {
  const std::int64_t rows = tensor.rows() / sequences;
  if (run == rows) return move(0, 0, tensor.rows());
  for (std::int64_t s = 0; s < sequences; ++s) move(s * rows + first_row, s * run, run);
}

}  // namespace

Matrix some_heads(const CoreAttention& attention, const Tensor& tensor, std::int64_t first,
                  std::int64_t count) {
  Matrix heads = heads_of(attention, tensor, 0, tensor.rows() / attention.sequences);
  heads.data = tensor.slice(first * attention.head, {attention.head}).data();
  heads.batch[1] = count;
  return heads;
}

Tensor log_sum_exp_of(const CoreAttention& attention, const Tensor& log_sum_exp,
                      const HeadSplit::Call& call) {
  const std::int64_t positions = log_sum_exp.cols();
  return log_sum_exp.slice(attention.sequences * call.query * positions,
                           {attention.sequences * call.queries, positions});
}

HeadExchange::HeadExchange(const CoreAttention& attention, const SequencePlacement& positions,
                           std::int64_t first_row)
    : attention_(attention),
      positions_(positions),
      first_row_(first_row),
      split_{attention.heads, attention.kv_heads, attention.cp.size()} {
  attention.check();
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

HeadExchange::Route HeadExchange::make_route(const std::vector<ChunkRange>& heads) const {
  const int ranks = split_.ranks;
  std::vector<std::int64_t> to_heads, to_sequence;
  for (int from = 0; from < ranks; ++from)
    for (int to = 0; to < ranks; ++to) {
      const auto elements = [&](int tokens_of, int heads_of_rank) {
        return tokens(tokens_of) * heads[static_cast<std::size_t>(heads_of_rank)].size() *
               attention_.head;
      };
      to_heads.push_back(elements(from, to));
      to_sequence.push_back(elements(to, from));
    }
  return {heads, std::make_shared<const collectives::TrafficMatrix>(ranks, to_heads),
          std::make_shared<const collectives::TrafficMatrix>(ranks, to_sequence)};
}

std::int64_t HeadExchange::own_width(const Route& route) const {
  return route.heads[static_cast<std::size_t>(attention_.cp.rank())].size() * attention_.head;
}

Tensor HeadExchange::make_whole(Heads heads, Category category) const {
  return attention_.tensor({attention_.sequences * positions_.sequence, own_width(route_of(heads))},
                           category);
}

void HeadExchange::to_heads(const Tensor& part, Heads heads, const Tensor& whole) const {
  const CoreAttention& a = attention_;
  const Route& route = route_of(heads);
  const int rank = a.cp.rank();
  const Tensor leaving = a.tensor({route.to_heads->sent_by(rank)}, Category::buffers),
               arrived = a.tensor({route.to_heads->received_by(rank)}, Category::buffers);
  for (int to = 0; to < split_.ranks; ++to) {
    const ChunkRange of_rank = route.heads[static_cast<std::size_t>(to)];
    const std::int64_t width = of_rank.size() * a.head;
    each_run(a.sequences, part, first_row_, positions_.rows(rank),
             [&](std::int64_t row, std::int64_t of_run, std::int64_t count) {
               copy(a,
                    rows_at(leaving, route.to_heads->input_begin(rank, to) + of_run * width, width),
                    rows_at(part, row * part.cols() + of_rank.begin * a.head, part.cols()), width,
                    count);
             });
  }
  a.cp.all_to_all_v(leaving, arrived, route.to_heads);
  const std::int64_t width = own_width(route);
  for (int from = 0; from < split_.ranks; ++from) {
    const std::int64_t begin = route.to_heads->output_begin(rank, from);
    each_segment(
        a.sequences, positions_, from,
        [&](std::int64_t row, std::int64_t stride, std::int64_t of_part, std::int64_t count) {
          copy(a, rows_at(whole, row * width, stride * width),
               rows_at(arrived, begin + of_part * width, width), width, count);
        });
  }
}

Tensor HeadExchange::exchange_to_sequence(const Tensor& whole, const Route& route) const {
  const CoreAttention& a = attention_;
  const int rank = a.cp.rank();
  const std::int64_t width = own_width(route);
  const Tensor leaving = a.tensor({route.to_sequence->sent_by(rank)}, Category::buffers);
  Tensor arrived = a.tensor({route.to_sequence->received_by(rank)}, Category::buffers);
  for (int to = 0; to < split_.ranks; ++to) {
    const std::int64_t begin = route.to_sequence->input_begin(rank, to);
    each_segment(
        a.sequences, positions_, to,
        [&](std::int64_t row, std::int64_t stride, std::int64_t of_part, std::int64_t count) {
          copy(a, rows_at(leaving, begin + of_part * width, width),
               rows_at(whole, row * width, stride * width), width, count);
        });
  }
  a.cp.all_to_all_v(leaving, arrived, route.to_sequence);
  return arrived;
}

void HeadExchange::place_heads(const Tensor& arrived, const Route& route, int layer,
                               const Tensor& part, std::int64_t first_row) const {
  const CoreAttention& a = attention_;
  for (int from = 0; from < split_.ranks; ++from) {
    if (layer >= 0 && layers_[static_cast<std::size_t>(from)] != layer) continue;
    const ChunkRange heads = route.heads[static_cast<std::size_t>(from)];
    const std::int64_t width = heads.size() * a.head,
                       begin = route.to_sequence->output_begin(a.cp.rank(), from);
    each_run(a.sequences, part, first_row, positions_.rows(a.cp.rank()),
             [&](std::int64_t row, std::int64_t of_run, std::int64_t count) {
               copy(a, rows_at(part, row * part.cols() + heads.begin * a.head, part.cols()),
                    rows_at(arrived, begin + of_run * width, width), width, count);
             });
  }
}

void HeadExchange::to_sequence(const Tensor& whole, Heads heads, const Tensor& part) const {
  const Route& route = route_of(heads);
  place_heads(exchange_to_sequence(whole, route), route, -1, part, first_row_);
}

void HeadExchange::sum_to_sequence(const Tensor& whole, const Tensor& part) const {
  if (copies_ == 1) return to_sequence(whole, Heads::keys, part);
  const CoreAttention& a = attention_;
  const std::int64_t rows = positions_.rows(a.cp.rank());
  const machine::Shape run{a.sequences * rows, part.cols()};
  const Tensor arrived = exchange_to_sequence(whole, keys_);
  const Tensor layer = a.tensor(run, Category::buffers), sum = a.sums(run, Category::buffers);
  a.kernels().fill(sum, 0);
  for (int i = 0; i < copies_; ++i) {
    a.kernels().fill(layer, 0);  // a layer need not have every head
    place_heads(arrived, keys_, i, layer, 0);
    a.kernels().accumulate(layer, sum);
  }
  each_run(a.sequences, part, first_row_, rows,
           [&](std::int64_t row, std::int64_t of_run, std::int64_t count) {
             a.kernels().cast(sum.row_range(of_run, count), part.row_range(row, count));
           });
}

}  // namespace layers

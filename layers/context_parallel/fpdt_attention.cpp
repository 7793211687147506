#include "layers/context_parallel/fpdt_attention.h"

#include <algorithm>
#include <limits>

#include "machine/base/error.h"

namespace layers {

using machine::Category;
using machine::Matrix;
using machine::Tensor;

namespace {

struct Keys {
  Tensor k, v;
};

// Memory for tensors [rows, width] of any chunk.
class Scratch {
 public:
  Scratch(const CoreAttention& attention, machine::Dtype dtype, std::int64_t rows,
          std::int64_t width)
      : width_(width), memory_(attention.device, dtype, {rows, width}, Category::buffers) {}
  Tensor of(std::int64_t rows) const { return memory_.slice(0, {rows, width_}); }

 private:
  std::int64_t width_;
  Tensor memory_;
};

}  // namespace

FpdtAttention::FpdtAttention(const CoreAttention& attention, std::int64_t chunk_size,
                             ChunkOffload& offload)
    : attention_(attention), chunk_size_(chunk_size), offload_(offload) {
  const SequencePlacement& whole = attention.placement;
  const int ranks = attention.cp.size();
  SHARDMARK_CHECK(ranks == 1 || whole.order == SequenceOrder::striped, ==, true);
  SHARDMARK_CHECK(chunk_size, >=, 1);
  SHARDMARK_CHECK(chunk_size % ranks == 0 || chunk_size >= whole.sequence, ==, true);
  for (std::int64_t begin = 0; begin < whole.sequence; begin += chunk_size)
    exchanges_.emplace_back(attention,
                            SequencePlacement{SequenceOrder::striped,
                                              std::min(chunk_size, whole.sequence - begin), ranks},
                            begin / ranks);
  const HeadSplit& split = exchanges_.front().split();
  const int rank = attention.cp.rank();
  calls_ = split.calls(rank);
  heads_ = split.queries(rank).size();
  width_ = heads_ * attention.head;
  kv_width_ = split.keys(rank).size() * attention.head;
}

std::int64_t FpdtAttention::positions(int chunk) const {
  return std::min(chunk_size_, attention_.placement.sequence - chunk * chunk_size_);
}

Tensor FpdtAttention::log_sum_exp_of_chunk(const Tensor& all, int chunk) const {
  const std::int64_t rows = attention_.sequences * heads_;
  return all.slice(rows * chunk * chunk_size_, {rows, positions(chunk)});
}

Tensor FpdtAttention::place_for(const Tensor& rows) const {
  return offload_.on() ? attention_.tensor(rows.shape(), Category::buffers) : rows;
}

Tensor FpdtAttention::to_heads(int chunk, const Tensor& part, Heads heads,
                               const Tensor& all) const {
  const Tensor rows = of_chunk(all, chunk), result = place_for(rows);
  exchange_of(chunk).to_heads(part, heads, result);
  offload_.store(result, rows);
  return result;
}

void FpdtAttention::forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                            Saved& saved, Category kept) const {
  const CoreAttention& a = attention_;
  const std::int64_t most = tokens(0);
  const auto make = [&](std::int64_t width) {
    return offload_.make(a.dtype, {all_tokens(), width}, kept);
  };
  saved = {make(width_), make(kv_width_), make(kv_width_), make(width_),
           a.sums({all_tokens() * heads_}, kept)};
  const Scratch sums(a, a.accumulator(), most, width_), parts(a, a.dtype, most, width_),
      part_sums(a, a.accumulator(), a.sequences * heads_, positions(0));
  std::vector<ChunkReader::Buffer> buffers(2, {a.dtype, most * kv_width_});
  if (chunks() == 1) buffers.clear();
  ChunkReader reader(offload_, chunks(), buffers);

  Keys last;  // of the chunk that was exchanged last
  int exchanged = 0;
  for (int i = 0; i < chunks(); ++i) {
    for (; exchanged <= last_seen(i); ++exchanged) {
      last = Keys();
      last.k = to_heads(exchanged, k, Heads::keys, saved.k);
      last.v = to_heads(exchanged, v, Heads::keys, saved.v);
    }
    Tensor queries = to_heads(i, q, Heads::queries, saved.q);
    const Tensor log_sum_exp = log_sum_exp_of_chunk(saved.log_sum_exp, i), sum = sums.of(tokens(i)),
                 part = parts.of(tokens(i)),
                 part_log_sum_exp =
                     part_sums.of(a.sequences * heads_).slice(0, log_sum_exp.shape());
    a.kernels().fill(sum, 0);
    a.kernels().fill(log_sum_exp, -std::numeric_limits<double>::infinity());
    const auto attend = [&](const Keys& keys, bool causal) {
      for (const HeadSplit::Call& call : calls_) {
        const Matrix part_heads = some_heads(a, part, call.query, call.queries);
        const Tensor part_log = log_sum_exp_of(a, part_log_sum_exp, call);
        flash_attention(a.stream(), some_heads(a, queries, call.query, call.queries),
                        some_heads(a, keys.k, call.key, call.keys),
                        some_heads(a, keys.v, call.key, call.keys), {a.scale, causal}, part_heads,
                        part_log);
        a.kernels().merge_attention(part_heads, machine::matrix(part_log),
                                    some_heads(a, sum, call.query, call.queries),
                                    machine::matrix(log_sum_exp_of(a, log_sum_exp, call)));
      }
    };
    // The keys that are on the device come first. The others are all before them.
    const int others = last_seen(i);
    const auto start = [&](int j) {
      if (j < others) reader.start({{of_chunk(saved.k, j)}, {of_chunk(saved.v, j)}});
    };
    start(0);
    attend(last, a.causal);
    for (int j = 0; j < others; ++j) {
      start(j + 1);
      const std::vector<Tensor> keys = reader.finish();
      attend({keys[0], keys[1]}, false);
    }
    queries = Tensor();
    const Tensor rows = of_chunk(saved.out, i), result = place_for(rows);
    a.kernels().cast(sum, result);
    offload_.store(result, rows);
    exchange_of(i).to_sequence(result, Heads::queries, out);
  }
  offload_.join();
}

void FpdtAttention::backward(const Tensor& d_out, const AttentionGradients& gradients,
                             Saved& saved) const {
  const CoreAttention& a = attention_;
  const machine::Shape all{all_tokens(), width_};
  const Tensor all_d_out = offload_.make(a.dtype, all, Category::buffers),
               all_d_q = offload_.make(a.accumulator(), all, Category::buffers);
  for (int i = 0; i < chunks(); ++i) to_heads(i, d_out, Heads::queries, all_d_out);

  const std::int64_t most = tokens(0);
  const machine::Dtype sum_type = a.accumulator();
  const Scratch parts(a, a.dtype, most, width_), k_parts(a, a.dtype, most, kv_width_),
      v_parts(a, a.dtype, most, kv_width_), k_sums(a, sum_type, most, kv_width_),
      v_sums(a, sum_type, most, kv_width_);
  const ChunkReader::Buffer of_k{a.dtype, most * kv_width_}, of_q{a.dtype, most * width_};
  ChunkReader key_reader(offload_, chunks(), {of_k, of_k}),
      query_reader(offload_, chunks(), {of_q, of_q, of_q, {sum_type, most * width_}});
  struct Pair {
    int keys, queries;
  };
  std::vector<Pair> pairs;
  for (int j = 0; j < chunks(); ++j)
    for (int i = first_seeing(j); i < chunks(); ++i) pairs.push_back({j, i});
  const auto start_keys = [&](int j) {
    if (j < chunks()) key_reader.start({{of_chunk(saved.k, j)}, {of_chunk(saved.v, j)}});
  };
  const auto start_queries = [&](std::size_t pair) {
    const auto [j, i] = pairs[pair];
    query_reader.start({{of_chunk(saved.q, i)},
                        {of_chunk(saved.out, i)},
                        {of_chunk(all_d_out, i)},
                        {of_chunk(all_d_q, i), j > 0}});  // the sum begins with the first keys
  };
  start_keys(0);
  start_queries(0);
  Keys keys;
  for (std::size_t pair = 0; pair < pairs.size(); ++pair) {
    const auto [j, i] = pairs[pair];
    const Tensor d_k_sum = k_sums.of(tokens(j)), d_v_sum = v_sums.of(tokens(j));
    if (i == first_seeing(j)) {
      start_keys(j + 1);
      const std::vector<Tensor> read = key_reader.finish();
      keys = {read[0], read[1]};
      a.kernels().fill(d_k_sum, 0);
      a.kernels().fill(d_v_sum, 0);
    }
    // The next pair reads the sum that this pair writes if both have the same queries.
    const bool more = pair + 1 < pairs.size(), same = more && pairs[pair + 1].queries == i;
    if (more && !same) start_queries(pair + 1);
    const std::vector<Tensor> queries = query_reader.finish();
    const Tensor& d_q_sum = queries[3];
    const Tensor d_q = parts.of(tokens(i)), d_k = k_parts.of(tokens(j)),
                 d_v = v_parts.of(tokens(j));
    if (j == 0) a.kernels().fill(d_q_sum, 0);
    for (const HeadSplit::Call& call : calls_) {
      const auto heads = [&](const Tensor& tensor) {
        return some_heads(a, tensor, call.query, call.queries);
      };
      const auto key_heads = [&](const Tensor& tensor) {
        return some_heads(a, tensor, call.key, call.keys);
      };
      flash_attention_backward(a.stream(), heads(queries[0]), key_heads(keys.k), key_heads(keys.v),
                               {a.scale, a.causal && i == j}, heads(queries[1]),
                               log_sum_exp_of(a, log_sum_exp_of_chunk(saved.log_sum_exp, i), call),
                               heads(queries[2]), heads(d_q), key_heads(d_k), key_heads(d_v));
    }
    a.kernels().accumulate(d_q, d_q_sum);
    a.kernels().accumulate(d_k, d_k_sum);
    a.kernels().accumulate(d_v, d_v_sum);
    if (j < last_seen(i)) {
      offload_.store(d_q_sum, of_chunk(all_d_q, i));
    } else {
      a.kernels().cast(d_q_sum, d_q);
      exchange_of(i).to_sequence(d_q, Heads::queries, gradients.d_q);
    }
    if (same) start_queries(pair + 1);
    if (i == chunks() - 1) {
      a.kernels().cast(d_k_sum, d_k);
      a.kernels().cast(d_v_sum, d_v);
      exchange_of(j).sum_to_sequence(d_k, gradients.d_k);
      exchange_of(j).sum_to_sequence(d_v, gradients.d_v);
    }
  }
  offload_.join();
  saved = Saved();
}

}  // namespace layers

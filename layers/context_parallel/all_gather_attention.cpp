#include "layers/context_parallel/all_gather_attention.h"

#include "layers/context_parallel/partial_attention.h"

namespace layers {

using machine::Category;
using machine::Tensor;

namespace {

// Equal shares of all ranks, each a pair of tensors of keys.
class Shares {
 public:
  Shares(const CoreAttention& attention, machine::Dtype dtype)
      : share_(2 * attention.most_tokens() * attention.kv_width()),
        width_(attention.kv_width()),
        memory_(attention.device, dtype, {attention.cp.size() * share_}, Category::buffers) {
    attention.kernels().fill(memory_, 0);
  }
  const Tensor& all() const { return memory_; }
  Tensor of(int rank) const { return memory_.slice(rank * share_, {share_}); }
  TensorPair pair(int rank) const { return {of(rank), width_}; }

 private:
  std::int64_t share_, width_;
  Tensor memory_;
};

Shares gather_keys(const CoreAttention& attention, const Attended& tensors) {
  Shares gathered(attention, attention.dtype);
  const int rank = attention.cp.rank();
  const std::int64_t tokens = attention.tokens();
  const TensorPair own = gathered.pair(rank);
  attention.stream().copy(own.first(tokens).data(), tensors.k.data(), tensors.k.bytes());
  attention.stream().copy(own.second(tokens).data(), tensors.v.data(), tensors.v.bytes());
  attention.cp.all_gather(gathered.of(rank), gathered.all());
  return gathered;
}

// Calls use(rank, tile) for every rank with keys that this rank's queries see.
template <class Use>
void each_tile(const CoreAttention& attention, const Use& use) {
  for (int rank = 0; rank < attention.cp.size(); ++rank)
    if (const auto tile = attention.placement.tile(attention.cp.rank(), rank, attention.causal))
      use(rank, *tile);
}

}  // namespace

void all_gather_attention(const CoreAttention& attention, const Attended& tensors) {
  attention.check();
  if (attention.cp.size() == 1) return attend_alone(attention, tensors);
  const Shares gathered = gather_keys(attention, tensors);
  const PartialOutput output(attention, tensors.log_sum_exp);
  each_tile(attention, [&](int rank, const Tile& tile) {
    const TensorPair keys = gathered.pair(rank);
    const std::int64_t tokens = attention.tokens(rank);
    output.add(tensors.q, keys.first(tokens), keys.second(tokens), tile);
  });
  output.store(tensors.out);
}

void all_gather_attention_backward(const CoreAttention& attention, const Attended& tensors,
                                   const Tensor& d_out, const AttentionGradients& gradients) {
  attention.check();
  if (attention.cp.size() == 1) return attend_alone_backward(attention, tensors, d_out, gradients);
  const Shares gathered = gather_keys(attention, tensors);
  const Shares sums(attention, attention.accumulator());
  const PartialGradients partial(attention);
  each_tile(attention, [&](int rank, const Tile& tile) {
    const TensorPair keys = gathered.pair(rank);
    const std::int64_t tokens = attention.tokens(rank);
    const auto part = partial.add(tensors, keys.first(tokens), keys.second(tokens), d_out, tile);
    add_of_keys(attention, part, tile, sums.pair(rank), tokens);
  });
  const int rank = attention.cp.rank();
  attention.cp.reduce_scatter(sums.all(), sums.of(rank));
  const TensorPair own = sums.pair(rank);
  attention.kernels().cast(own.first(attention.tokens()), gradients.d_k);
  attention.kernels().cast(own.second(attention.tokens()), gradients.d_v);
  partial.store(gradients.d_q);
}

}  // namespace layers

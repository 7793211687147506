#include "layers/context_parallel/ring_attention.h"

#include <utility>

#include "layers/context_parallel/partial_attention.h"
#include "layers/context_parallel/ring_exchange.h"

namespace layers {

using machine::Tensor;

namespace {

// The keys and values of one rank after another, and their way around the ring.
class Blocks {
 public:
  Blocks(const CoreAttention& attention, const Tensor& k, const Tensor& v)
      : attention_(attention),
        exchange_(attention.cp, attention.device),
        current_(make_pair_of(attention, attention.dtype, attention.most_tokens())),
        next_(make_pair_of(attention, attention.dtype, attention.most_tokens())) {
    const std::int64_t tokens = attention.tokens();
    attention.stream().copy(current_.first(tokens).data(), k.data(), k.bytes());
    attention.stream().copy(current_.second(tokens).data(), v.data(), v.bytes());
  }

  // Returns the rank that owns the block of a round.
  int source(int round) const {
    return (attention_.cp.rank() - round + attention_.cp.size()) % attention_.cp.size();
  }
  std::int64_t tokens(int round) const { return attention_.tokens(source(round)); }
  bool is_last(int round) const { return round == attention_.cp.size() - 1; }

  void send(int round) {
    if (!is_last(round))
      exchange_.start(current_.both(tokens(round)), next_.both(tokens(round + 1)));
  }
  void receive(int round) {
    if (is_last(round)) return;
    exchange_.finish();
    std::swap(current_, next_);
  }
  Tensor k(int round) const { return current_.first(tokens(round)); }
  Tensor v(int round) const { return current_.second(tokens(round)); }

 private:
  const CoreAttention& attention_;
  RingExchange exchange_;
  TensorPair current_, next_;
};

}  // namespace

void ring_attention(const CoreAttention& attention, const Attended& tensors) {
  attention.check();
  if (attention.cp.size() == 1) return attend_alone(attention, tensors);
  const PartialOutput output(attention, tensors.log_sum_exp);
  Blocks blocks(attention, tensors.k, tensors.v);
  for (int round = 0; round < attention.cp.size(); ++round) {
    blocks.send(round);
    const auto tile =
        attention.placement.tile(attention.cp.rank(), blocks.source(round), attention.causal);
    if (tile) output.add(tensors.q, blocks.k(round), blocks.v(round), *tile);
    blocks.receive(round);
  }
  output.store(tensors.out);
}

void ring_attention_backward(const CoreAttention& attention, const Attended& tensors,
                             const Tensor& d_out, const AttentionGradients& gradients) {
  attention.check();
  if (attention.cp.size() == 1) return attend_alone_backward(attention, tensors, d_out, gradients);
  const PartialGradients partial(attention);
  Blocks blocks(attention, tensors.k, tensors.v);
  RingExchange exchange(attention.cp, attention.device);
  const auto sums_of = [&](std::int64_t tokens) {
    return make_pair_of(attention, attention.accumulator(), tokens);
  };
  TensorPair sums = sums_of(attention.most_tokens()), arriving = sums_of(attention.most_tokens());
  const std::int64_t own_tokens = attention.tokens();
  const TensorPair own = sums_of(own_tokens);
  attention.kernels().fill(own.both(own_tokens), 0);

  for (int round = 0; round < attention.cp.size(); ++round) {
    blocks.send(round);
    const std::int64_t tokens = blocks.tokens(round);
    const auto tile =
        attention.placement.tile(attention.cp.rank(), blocks.source(round), attention.causal);
    PartialGradients::OfKeys part;
    if (tile) part = partial.add(tensors, blocks.k(round), blocks.v(round), d_out, *tile);
    if (round == 0) {
      if (tile) add_of_keys(attention, part, *tile, own, own_tokens);
    } else {
      if (round == 1) {
        attention.kernels().fill(sums.both(tokens), 0);
      } else {  // the ranks between the owner and this rank have added theirs
        exchange.finish();
        std::swap(sums, arriving);
      }
      if (tile) add_of_keys(attention, part, *tile, sums, tokens);
      // In the last round the previous rank has the sum of this rank's block.
      exchange.start(sums.both(tokens),
                     arriving.both(blocks.is_last(round) ? own_tokens : blocks.tokens(round + 1)));
    }
    blocks.receive(round);
  }
  exchange.finish();
  attention.kernels().accumulate(arriving.both(own_tokens), own.both(own_tokens));
  attention.kernels().cast(own.first(own_tokens), gradients.d_k);
  attention.kernels().cast(own.second(own_tokens), gradients.d_v);
  partial.store(gradients.d_q);
}

}  // namespace layers

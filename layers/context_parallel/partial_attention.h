#pragma once
// Attention of a rank's queries over the keys of one rank after another. Forward merges the parts
// by their log-sum-exp in the accumulator and rounds once at the end:
//
//   PartialOutput output(attention, log_sum_exp);
//   for each block of keys: output.add(q, k, v, tile);
//   output.store(out);
//
// Backward needs the merged out and log_sum_exp. Every block adds to the gradient of the queries,
// and gives its own keys' gradient to the caller.
//
// Buffers: forward 1 x [tokens, width] accumulators and the same in dtype, and a part's log_sum_exp
// [sequences * heads, rows]. Backward holds the same, and a block's d_k and d_v in dtype.

#include "layers/context_parallel/core_attention.h"

namespace layers {

// Two tensors [tokens, width], one after the other, which are sent as one message.
class TensorPair {
 public:
  TensorPair() = default;
  TensorPair(const machine::Tensor& memory, std::int64_t width) : memory_(memory), width_(width) {}
  machine::Tensor both(std::int64_t tokens) const { return memory_.slice(0, {2 * tokens, width_}); }
  machine::Tensor first(std::int64_t tokens) const { return memory_.slice(0, {tokens, width_}); }
  machine::Tensor second(std::int64_t tokens) const {
    return memory_.slice(tokens * width_, {tokens, width_});
  }

 private:
  machine::Tensor memory_;
  std::int64_t width_ = 0;
};

// Returns memory for a pair of up to `tokens` tokens of keys and values, or of their gradients.
TensorPair make_pair_of(const CoreAttention& attention, machine::Dtype dtype, std::int64_t tokens);

class PartialOutput {
 public:
  PartialOutput(const CoreAttention& attention, const machine::Tensor& log_sum_exp);
  // k and v have the rows of the tile's key rank.
  void add(const machine::Tensor& q, const machine::Tensor& k, const machine::Tensor& v,
           const Tile& tile) const;
  void store(const machine::Tensor& out) const;

 private:
  const CoreAttention& attention_;
  machine::Tensor log_sum_exp_, sum_, part_, part_log_sum_exp_;
};

class PartialGradients {
 public:
  explicit PartialGradients(const CoreAttention& attention);
  // The gradients of the tile's keys and values: [sequences * tile.keys, kv_width], valid until the
  // next call.
  struct OfKeys {
    machine::Tensor d_k, d_v;
  };
  OfKeys add(const Attended& own, const machine::Tensor& k, const machine::Tensor& v,
             const machine::Tensor& d_out, const Tile& tile) const;
  void store(const machine::Tensor& d_q) const;

 private:
  const CoreAttention& attention_;
  machine::Tensor sum_, part_, part_log_sum_exp_;
  TensorPair of_keys_;
};

// Adds the rows of a part [sequences * count, width] to rows [first, first + count) of each
// sequence of `sum`.
void add_rows(const CoreAttention& attention, const machine::Tensor& part, std::int64_t first,
              const machine::Tensor& sum);
// Adds the gradients of a tile's keys to the sums of all keys of `tokens` tokens.
void add_of_keys(const CoreAttention& attention, const PartialGradients::OfKeys& part,
                 const Tile& tile, const TensorPair& sums, std::int64_t tokens);

}  // namespace layers

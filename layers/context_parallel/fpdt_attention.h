#pragma once
// FPDT, the fully pipelined distributed transformer (Yao et al. 2024, arXiv:2408.16978; DeepSpeed's
// Ulysses-Offload): Ulysses for one chunk of the sequence after another, with the chunks in host
// memory while none uses them. The device holds buffers of a few chunks, whatever the length of the
// sequence.
//
//   forward    chunk i: q, k, v to heads; attention over the keys of all chunks that it sees,
//              merged by log-sum-exp; out to sequence
//   backward   keys of chunk j, over all chunks i of queries that see them: the sums of d_k and d_v
//              stay on the device, d_q of i travels, until j is the last chunk that i sees
//
// A chunk has `chunk_size` consecutive positions of every sequence, the last one may have fewer.
// The placement is striped, so that consecutive rows of all ranks are consecutive positions; the
// paper deals out each chunk in blocks instead, with the same messages.
//
// The messages are those of Ulysses, once for each chunk. context_cost.h counts them, the copies
// between host and device, and both memories.

#include <vector>

#include "layers/context_parallel/head_exchange.h"
#include "layers/context_parallel/splits/chunk_offload.h"

namespace layers {

class FpdtAttention {
 public:
  // Both outlive the object. Requires striped placement, or one rank, and a chunk_size that the
  // ranks divide or that is at least the sequence.
  FpdtAttention(const CoreAttention& attention, std::int64_t chunk_size, ChunkOffload& offload);

  // The tensors of the own heads, chunk by chunk. log_sum_exp is on the device.
  using Saved = Attended;

  // Writes out, and `saved` in memory of `kept`.
  void forward(const machine::Tensor& q, const machine::Tensor& k, const machine::Tensor& v,
               const machine::Tensor& out, Saved& saved, machine::Category kept) const;
  void backward(const machine::Tensor& d_out, const AttentionGradients& gradients,
                Saved& saved) const;  // leaves saved empty

 private:
  int chunks() const { return static_cast<int>(exchanges_.size()); }
  // The last chunk whose keys a chunk sees, and the first chunk whose queries see a chunk.
  int last_seen(int chunk) const { return attention_.causal ? chunk : chunks() - 1; }
  int first_seeing(int chunk) const { return attention_.causal ? chunk : 0; }
  std::int64_t positions(int chunk) const;
  std::int64_t tokens(int chunk) const { return attention_.sequences * positions(chunk); }
  std::int64_t all_tokens() const { return attention_.sequences * attention_.placement.sequence; }
  // Returns the rows of a chunk of a tensor of all chunks.
  machine::Tensor of_chunk(const machine::Tensor& all, int chunk) const {
    return all.row_range(attention_.sequences * chunk * chunk_size_, tokens(chunk));
  }
  machine::Tensor log_sum_exp_of_chunk(const machine::Tensor& all, int chunk) const;
  const HeadExchange& exchange_of(int chunk) const {
    return exchanges_[static_cast<std::size_t>(chunk)];
  }
  // Exchanges the rows of a chunk and keeps the result in its rows of `all`. Returns it on the
  // device.
  machine::Tensor to_heads(int chunk, const machine::Tensor& part, Heads heads,
                           const machine::Tensor& all) const;
  // Returns memory on the device for a result that is kept in these rows of a chunk.
  machine::Tensor place_for(const machine::Tensor& rows) const;

  const CoreAttention& attention_;
  std::int64_t chunk_size_;
  std::vector<HeadExchange> exchanges_;    // of each chunk
  std::vector<HeadSplit::Call> calls_;     // of the blockwise kernel
  std::int64_t heads_, width_, kv_width_;  // of the own heads
  ChunkOffload& offload_;
};

}  // namespace layers

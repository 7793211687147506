#pragma once
// The exchange of Ulysses (Jacobs et al. 2023, arXiv:2309.14509) for a run of positions: an
// all-to-all turns a split of the positions into a split of the heads, and one turns it back.
//
//   [own rows, all heads] → [all rows, own heads] → [own rows, all heads]
//
// Heads are split as in head_split.h: ranks need not divide them, but there are at least as many
// heads of queries as ranks. Heads of keys that several ranks use are sent to each of them, and the
// gradients of the copies are summed in accumulators. Rows are in the order of positions while a
// rank has its heads, so every placement has the plain mask.
//
//   HeadExchange exchange(attention, attention.placement);   // whole sequences
//   Tensor own_heads = exchange.make_whole(Heads::queries, Category::buffers);
//   exchange.to_heads(q, Heads::queries, own_heads);
//   exchange.to_sequence(own_heads, Heads::queries, out);

#include <memory>
#include <vector>

#include "collectives/traffic_matrix.h"
#include "layers/context_parallel/core_attention.h"
#include "layers/context_parallel/splits/head_split.h"

namespace layers {

// Returns heads [first, first + count) of [tokens, heads * head] as one batch.
machine::Matrix some_heads(const CoreAttention& attention, const machine::Tensor& tensor,
                           std::int64_t first, std::int64_t count);
// Returns the part of one call of [sequences * own heads, positions], which is stored call by call.
machine::Tensor log_sum_exp_of(const CoreAttention& attention, const machine::Tensor& log_sum_exp,
                               const HeadSplit::Call& call);

// The heads of q and out, or those of k and v.
enum class Heads : unsigned char { queries, keys };

class HeadExchange {
 public:
  // attention outlives the object. positions: a placement over its ranks; a rank's rows of it are
  // rows [first_row, first_row + rows) of each sequence of the rank's tensors.
  HeadExchange(const CoreAttention& attention, const SequencePlacement& positions,
               std::int64_t first_row = 0);

  const HeadSplit& split() const { return split_; }

  // Returns a tensor of all rows and the rank's own heads.
  machine::Tensor make_whole(Heads heads, machine::Category category) const;
  void to_heads(const machine::Tensor& part, Heads heads, const machine::Tensor& whole) const;
  // Writes the own rows of `part`. The second sums the copies of a head of keys.
  void to_sequence(const machine::Tensor& whole, Heads heads, const machine::Tensor& part) const;
  void sum_to_sequence(const machine::Tensor& whole, const machine::Tensor& part) const;

 private:
  // The ranges of heads of all ranks, and their messages in both directions.
  struct Route {
    std::vector<collectives::ChunkRange> heads;
    std::shared_ptr<const collectives::TrafficMatrix> to_heads, to_sequence;
  };

  const Route& route_of(Heads heads) const { return heads == Heads::queries ? queries_ : keys_; }
  Route make_route(const std::vector<collectives::ChunkRange>& heads) const;
  std::int64_t own_width(const Route& route) const;
  std::int64_t tokens(int rank) const { return attention_.sequences * positions_.rows(rank); }
  machine::Tensor exchange_to_sequence(const machine::Tensor& whole, const Route& route) const;
  // Copies the heads of the ranks of a layer, or of all ranks if layer is -1, to rows of `part`
  // from first_row on.
  void place_heads(const machine::Tensor& arrived, const Route& route, int layer,
                   const machine::Tensor& part, std::int64_t first_row) const;

  const CoreAttention& attention_;
  SequencePlacement positions_;
  std::int64_t first_row_;
  HeadSplit split_;
  std::vector<int> layers_;
  int copies_;
  Route queries_, keys_;
};

}  // namespace layers

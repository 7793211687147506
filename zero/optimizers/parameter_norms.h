#pragma once
// The norms of whole parameters and of their updates, over all ranks that hold a part (LAMB,
// zero/stages/lamb.h). Squares are added up shard by shard, over tp, and then over the shards in
// their order, also without sharding. So all stages with one layout get the same bits. Ranks of tp
// that hold the same elements count them once. The two stages of a tied table hold equal values.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "collectives/communicator/communicator.h"
#include "machine/device/tensor.h"
#include "zero/states/layout.h"

namespace zero {

// Numbers of doubles: the squares of this rank, and those of the largest group.
struct ParameterSums {
  std::int64_t own = 0, gathered = 0;
};
ParameterSums parameter_sums(const GradientPlan& plan, const Layout& layout, bool sharded);
// Returns the most elements of a piece.
std::int64_t longest_piece(const GradientPlan& plan, const Layout& layout);

class ParameterNorms {
 public:
  enum Of : unsigned char { values, update };
  // The part of a parameter in a shard.
  struct Piece {
    int row = 0;       // of the plan
    Range range;       // of the flat buffers
    std::int64_t sum;  // index of its squares
  };

  // sharded: this rank owns the shards of its place in dp, and otherwise all.
  ParameterNorms(machine::Device& device, const GradientPlan& plan, const Layout& layout,
                 collectives::Communicator* tp, collectives::Communicator* dp, bool sharded,
                 std::string all_gather);

  const std::vector<Piece>& pieces() const { return pieces_; }  // of this rank, in order
  // Returns the double that receives the sum of squares of a piece, before norms().
  Tensor squares(const Piece& piece, Of of) const { return sums_.slice(piece.sum + of, {1}); }

  // Collective. Returns both norms of each row of the plan; zeros for frozen rows.
  std::vector<std::array<double, 2>> norms();

 private:
  std::vector<int> rows_;                // trained
  std::vector<double> replicas_;         // of each trained row, on the ranks of tp
  std::size_t num_rows_;                 // of the plan
  collectives::Communicator *tp_, *dp_;  // dp_: null unless sharded
  std::string all_gather_;
  std::vector<Piece> pieces_;
  Tensor sums_, gathered_;  // double; sums_: [owned shards, trained rows, 2]
};

}  // namespace zero

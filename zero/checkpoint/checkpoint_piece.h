#pragma once
// The elements of a global tensor that a piece of a checkpoint stores. With them a checkpoint can
// be read at other parallel degrees than those of the save.
//
// A rank of tp holds a box of a parameter. A rank of dp holds a range of the box's elements,
// counted in the box's row-major order. Both consist of runs of elements that are contiguous in the
// global tensor. A reader matches runs.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "collectives/placement.h"
#include "zero/optimizers/optimizer.h"
#include "zero/states/flat_states.h"

namespace zero {

struct Piece {
  std::string name = {};                  // of the tensor: "blocks.3.mlp.fc1.weight/master"
  std::vector<std::int64_t> global = {};  // extents, outermost first; empty: a scalar
  std::vector<std::int64_t> begin = {}, extent = {};  // of the box, by dimension
  Range range = {};                                   // of the box's elements
  bool operator==(const Piece&) const = default;

  std::int64_t size() const { return range.size(); }
};

// Returns the error, or an empty text if the numbers describe a piece: extents and offsets of at
// least 0, at most machine::Shape::max_rank of them, the box inside the tensor, the range inside
// the box, and no product above 2^60.
std::string why_no_piece(const Piece& piece);

struct Run {
  std::int64_t global = 0;  // the first element's index in the global tensor
  std::int64_t local = 0;   // its index in the piece
  std::int64_t size = 0;
};
std::vector<Run> runs(const Piece& piece);  // ascending in both indices

// A part of a parameter in a range of the flat buffers (layout.h). flat_pieces returns all of them;
// parameter i begins at offsets[i]. The pieces have the parameters' names.
// The parameters need not have values (ZeRO stage 3). tp: the degree.
struct FlatPiece {
  Piece piece;
  std::int64_t flat = 0;  // index of its first element, relative to the range
};
std::vector<FlatPiece> flat_pieces(const std::vector<Parameter*>& parameters,
                                   const std::vector<std::int64_t>& offsets, int tp, int tp_rank,
                                   Range range);

// Calls visit(piece, elements) for each existing state of each piece. The name of the piece gets
// the suffix /values, /master, /first_moment, /second_moment or /fresh_variance. Scales have no
// element for each of a parameter's, so they are not among them.
template <class Visit>
void for_each_state(const std::vector<FlatPiece>& pieces, const RangeStates& states,
                    const Visit& visit) {
  const bool own_master = states.master.data() != states.values.data();
  for (const FlatPiece& flat : pieces)
    for (const auto& [what, state] : {std::pair("values", states.values),
                                      {"master", own_master ? states.master : Tensor()},
                                      {"first_moment", states.first_moment},
                                      {"second_moment", states.second_moment},
                                      {"fresh_variance", states.fresh_variance}}) {
      if (!state) continue;
      Piece piece = flat.piece;
      piece.name += std::string("/") + what;
      visit(piece, state.slice(flat.flat, {piece.size()}));
    }
}

}  // namespace zero

#include "layers/tensor_grids/grid_cost.h"

#include <algorithm>
#include <utility>

namespace layers {
namespace {

using machine::Dtype, machine::Operation;

constexpr std::string_view row = "tp_row", column = "tp_column", tp_depth = "tp_depth";

// A matrix of a product: elements of a rank's block while it is multiplied, and their dtype.
struct Operand {
  std::int64_t elements;
  Dtype dtype;
  std::size_t bytes() const { return static_cast<std::size_t>(elements) * size_of(dtype); }
};

// Adds q calls, one with each root.
void each_root(GridPass& pass, std::string_view group, Operation operation, const Operand& block,
               int q) {
  for (int root = 0; root < q; ++root)
    pass.calls.push_back(
        {std::string(group), operation, block.dtype, q, block.elements, 1, {}, root});
}

void one_call(GridPass& pass, std::string_view group, Operation operation, const Operand& whole,
              int ranks, int root = 0) {
  if (ranks > 1)
    pass.calls.push_back(
        {std::string(group), operation, whole.dtype, ranks, whole.elements, 1, {}, root});
}

// Adds the moves of an operand to all ranks of a group, or of its sum over the group.
void summa(GridPass& pass, std::string_view group, bool is_sum, const Operand& block, int q) {
  if (q == 1) return;
  each_root(pass, group, is_sum ? Operation::reduce : Operation::broadcast, block, q);
  pass.buffers += block.bytes();
}

// q - 1 shifts, and an exchange unless the block is where it should be. The exchange is an
// all-to-all with one part that is not empty.
void cannon(GridPass& pass, std::string_view group, const Operand& block, int q, bool in_place) {
  if (q == 1) return;
  pass.calls.push_back(
      {std::string(group), Operation::send_receive, block.dtype, q, block.elements, q - 1});
  const auto messages = static_cast<std::uint64_t>(q - 1);
  if (!in_place)
    pass.messages[std::string(group)][{Operation::all_to_all_v, block.dtype}] +=
        {block.bytes(), messages, block.bytes(), messages};
  pass.buffers += 2 * block.bytes();
}

// A vector over the columns of a layer's output. 2d: parts on row 0. 3d: pieces on the diagonal of
// the axes j and k, by i. 1d: no communication.
struct Vector {
  int n;  // of the groups
  bool pieces, one_d, stores;
  int depth, root;
  std::string_view from;  // the group of its owner
  std::int64_t whole, part;

  Vector(const GridLinearCase& c, std::int64_t columns)
      : n(c.q),
        pieces(c.mode == TensorParallelMode::three_d),
        one_d(c.mode == TensorParallelMode::one_d),
        stores(one_d || (pieces ? c.place.j == c.place.k : c.place.i == 0)),
        depth(c.depth),
        root(!pieces                       ? 0
             : c.layer == PairPlace::first ? c.place.k
                                           : c.place.j),
        from(!pieces                       ? column
             : c.layer == PairPlace::first ? row
                                           : tp_depth),
        whole(one_d && c.layer == PairPlace::second ? columns : columns / c.q),
        part(pieces ? whole / c.q : whole) {}

  std::int64_t stored() const { return stores ? part : 0; }
  // Add the calls of a pass. Return the bytes of buffers.
  std::size_t gathered(GridPass& pass, Dtype dtype) const {
    if (one_d || n == 1) return 0;
    const Operand of_owner{part, dtype}, all{whole, dtype};
    one_call(pass, from, Operation::broadcast, of_owner, n, root);
    if (!pieces) return stores ? 0 : of_owner.bytes();
    one_call(pass, column, Operation::all_gather, all, n);
    return all.bytes();
  }
  // While it is gathered.
  std::size_t piece_bytes(Dtype dtype) const {
    return pieces && n > 1 && !stores ? Operand{part, dtype}.bytes() : 0;
  }
  std::size_t reduced(GridPass& pass, Dtype dtype) const {
    if (one_d || (n == 1 && depth == 1)) return 0;
    const Operand of_owner{part, dtype}, all{whole, dtype};
    if (pieces) one_call(pass, column, Operation::reduce_scatter, all, n);
    one_call(pass, from, Operation::reduce, of_owner, n, root);
    if (stores) one_call(pass, tp_depth, Operation::all_reduce, of_owner, depth);
    return all.bytes();
  }
  std::size_t reduced_piece_bytes(Dtype dtype) const {
    return pieces && n > 1 ? Operand{part, dtype}.bytes() : 0;
  }
};

void add_bias(GridLinearCost& cost, const GridLinearCase& c, Dtype gradients) {
  const Vector bias(c, c.out);
  cost.parameters += bias.stored();
  cost.forward.buffers = std::max(cost.forward.buffers,
                                  bias.gathered(cost.forward, c.dtype) + bias.piece_bytes(c.dtype));
  cost.backward_weights.buffers =
      std::max(cost.backward_weights.buffers, bias.reduced(cost.backward_weights, gradients) +
                                                  bias.reduced_piece_bytes(gradients));
}

// M/q x K/q, K/q x F/q and M/q x F/q blocks; of 2.5d M is that of one layer.
void two_dimensions(GridLinearCost& cost, const GridLinearCase& c, Dtype gradients) {
  const int q = c.q;
  const std::int64_t M = c.tokens / c.depth;
  const Operand x{M * c.in / (q * q), c.dtype}, w{c.in * c.out / (q * q), c.dtype},
      d_w{w.elements, gradients};
  if (c.cannon) {
    const bool first_row = c.place.i == 0, first_column = c.place.j == 0;
    cannon(cost.forward, row, x, q, first_row);
    cannon(cost.forward, column, w, q, first_column);
    cannon(cost.backward_input, column, w, q, first_column);
    cannon(cost.backward_input, row, x, q, c.place.i == q - 1);
    cannon(cost.backward_weights, row, x, q, first_row);
    cannon(cost.backward_weights, column, d_w, q, c.place.j == q - 1);
  } else {
    summa(cost.forward, row, false, x, q);
    summa(cost.forward, column, false, w, q);
    summa(cost.backward_input, column, false, w, q);
    summa(cost.backward_input, row, true, x, q);
    summa(cost.backward_weights, row, false, x, q);
    summa(cost.backward_weights, column, true, d_w, q);
  }
  one_call(cost.backward_weights, tp_depth, Operation::all_reduce, d_w, c.depth);
  if (q > 1 || c.depth > 1) cost.backward_weights.buffers += d_w.bytes();
  cost.parameters = w.elements;
}

void three_dimensions(GridLinearCost& cost, const GridLinearCase& c, Dtype gradients) {
  const int l = c.q;
  const bool first = c.layer == PairPlace::first;
  const std::string_view of_x = first ? tp_depth : row, of_y = first ? row : tp_depth;
  const Operand x{c.tokens * c.in / (l * l), c.dtype}, w{c.in * c.out / (l * l), c.dtype},
      y{c.tokens * c.out / (l * l), c.dtype}, d_w{w.elements, gradients};
  cost.parameters = w.elements / l;
  if (l > 1) {
    one_call(cost.forward, of_x, Operation::all_gather, x, l);
    one_call(cost.forward, column, Operation::all_gather, w, l);
    one_call(cost.forward, of_y, Operation::reduce_scatter, y, l);
    cost.forward.buffers = x.bytes() + w.bytes() + y.bytes();
    one_call(cost.backward_input, of_y, Operation::all_gather, y, l);
    one_call(cost.backward_input, column, Operation::all_gather, w, l);
    one_call(cost.backward_input, of_x, Operation::reduce_scatter, x, l);
    cost.backward_input.buffers = w.bytes() + x.bytes();
    cost.kept = y.bytes();
    one_call(cost.backward_weights, of_x, Operation::all_gather, x, l);
    one_call(cost.backward_weights, column, Operation::reduce_scatter, d_w, l);
    cost.backward_weights.buffers =
        x.bytes() + d_w.bytes() + d_w.bytes() / static_cast<std::size_t>(l);
  }
}

void one_dimension(GridLinearCost& cost, const GridLinearCase& c) {
  const bool first = c.layer == PairPlace::first;
  if (first)
    one_call(cost.backward_input, row, Operation::all_reduce, {c.tokens * c.in, c.dtype}, c.q);
  else
    one_call(cost.forward, row, Operation::all_reduce, {c.tokens * c.out, c.dtype}, c.q);
  cost.parameters = c.in * c.out / c.q;
}

}  // namespace

GridLinearCost grid_linear_cost(const GridLinearCase& c) {
  const Dtype gradients = c.dtype == Dtype::float64 ? Dtype::float64 : Dtype::float32;
  GridLinearCost cost;
  if (c.mode == TensorParallelMode::one_d)
    one_dimension(cost, c);
  else if (c.mode == TensorParallelMode::three_d)
    three_dimensions(cost, c, gradients);
  else
    two_dimensions(cost, c, gradients);
  if (c.bias) add_bias(cost, c, gradients);
  return cost;
}

GridLinearCost grid_embedding_cost(const GridLinearCase& c) {
  const bool flat = c.mode == TensorParallelMode::one_d,
             cube = c.mode == TensorParallelMode::three_d;
  const std::int64_t q = c.q, blocks = flat ? q : q * q;
  const Dtype gradients = c.dtype == Dtype::float64 ? Dtype::float64 : Dtype::float32;
  const Operand w{c.in * c.out / blocks, c.dtype}, d_w{w.elements, gradients};
  GridLinearCost cost;
  cost.parameters = cube ? w.elements / q : w.elements;
  if (flat) {
    one_call(cost.forward, row, Operation::all_reduce, {c.tokens * c.out, c.dtype}, c.q);
    return cost;
  }
  const Operand y{c.tokens * c.out / (blocks * c.depth), c.dtype};
  if (cube && q > 1) {
    one_call(cost.forward, column, Operation::all_gather, w, c.q);
    one_call(cost.forward, tp_depth, Operation::reduce_scatter, y, c.q);
    cost.forward.buffers = w.bytes() + y.bytes();
    one_call(cost.backward_weights, tp_depth, Operation::all_gather, y, c.q);
    one_call(cost.backward_weights, column, Operation::reduce_scatter, d_w, c.q);
    cost.backward_weights.buffers =
        y.bytes() + d_w.bytes() + d_w.bytes() / static_cast<std::size_t>(q);
  } else if (!cube) {
    if (q > 1) {
      each_root(cost.forward, column, Operation::broadcast, w, c.q);
      cost.forward.buffers = w.bytes() + y.bytes();
      each_root(cost.backward_weights, column, Operation::reduce, d_w, c.q);
      cost.backward_weights.buffers = d_w.bytes();
    }
    one_call(cost.backward_weights, tp_depth, Operation::all_reduce, d_w, c.depth);
    if (q > 1 || c.depth > 1) cost.backward_weights.buffers += d_w.bytes();
  }
  return cost;
}

GridLinearCost grid_head_cost(const GridLinearCase& c) {
  GridLinearCase table = c;
  table.layer = PairPlace::second;
  table.bias = false;
  GridLinearCost cost = grid_linear_cost(table);
  std::swap(cost.forward, cost.backward_input);
  if (c.mode == TensorParallelMode::three_d) {
    // Rows of the output layer's input are gathered in forward, and again for the weights.
    const Operand x{c.tokens * c.out / (c.q * c.q), c.dtype};
    cost.forward.buffers += cost.kept;
    one_call(cost.backward_weights, tp_depth, Operation::all_gather, x, c.q);
    if (c.q > 1) cost.backward_weights.buffers += x.bytes();
  }
  cost.kept = 0;
  return cost;
}

// Two sums for each row. Gain and bias are vectors over the columns.
GridNormCost grid_norm_cost(const GridLinearCase& c) {
  GridLinearCase second = c;
  second.layer = PairPlace::second;
  const Dtype sums = c.dtype == Dtype::float64 ? Dtype::float64 : Dtype::float32;
  const Vector vector(second, c.out);
  const std::int64_t rows = c.tokens / (c.mode == TensorParallelMode::one_d     ? 1
                                        : c.mode == TensorParallelMode::three_d ? c.q * c.q
                                                                                : c.q * c.depth);
  const Operand of_rows{2 * rows, sums};
  GridNormCost cost;
  for (GridPass* pass : {&cost.forward, &cost.backward_input}) {
    if (c.mode != TensorParallelMode::one_d)
      one_call(*pass, row, Operation::all_reduce, of_rows, c.q);
    pass->buffers = of_rows.bytes() + vector.gathered(*pass, c.dtype) + vector.piece_bytes(c.dtype);
  }
  cost.forward.buffers += vector.gathered(cost.forward, c.dtype);
  for (int i = 0; i < 2; ++i)
    cost.backward_weights.buffers += vector.reduced(cost.backward_weights, sums);
  cost.backward_weights.buffers += vector.reduced_piece_bytes(sums);
  cost.parameters = 2 * vector.stored();
  cost.kept = of_rows.bytes();
  return cost;
}

}  // namespace layers

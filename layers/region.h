#pragma once
// The conjugate operators at the borders of a tensor-parallel region: f and g of Shoeybi et al.
// 2019 (arXiv:1909.08053, figure 3), and with sequence parallelism those of Korthikanti et al. 2022
// (arXiv:2205.05198, figure 5). There a rank holds its own rows [tokens/tp, n] outside of the
// region and all rows [tokens, n] inside:
//
//            plain         sequence parallelism   backward
//   enter    identity      all-gather             leave, of the gradient
//   leave    all-reduce    reduce-scatter         enter, of the gradient
//
// `inside` is the tensor in which the region computes, and `outside` is the tensor that is held
// between regions. Without sequence parallelism they are one tensor. On one rank enter and leave do
// nothing.
//
// With the overlap of tp_comm_overlap.h, products run during the communication (enter_while,
// leave_while, leave_beside).
//
// A matrix whose columns are split, [n, m/tp] on each rank: gather_columns all-gathers it into
// [n, m]; its conjugate, own_columns_of, sends nothing.

#include <cstdint>
#include <functional>

#include "layers/context.h"
#include "machine/device/gemm.h"

namespace layers {

inline void all_reduce_over_tp(const Context& context, const Tensor& y) {
  if (context.tp.size() > 1) context.tp.all_reduce(y);
}

inline void gather_columns(const Context& context, const Tensor& part, const Tensor& whole) {
  const Tensor blocks =
      context.tensor({context.tp.size() * part.rows(), part.cols()}, Category::buffers);
  context.tp.all_gather(part, blocks);
  const auto row_bytes = [](const Tensor& rows) { return rows.row_range(0, 1).bytes(); };
  for (std::int64_t block = 0; block < context.tp.size(); ++block)
    context.stream().copy_rows(whole.slice(block * part.cols(), {part.cols()}).data(),
                               row_bytes(whole),
                               blocks.row_range(block * part.rows(), part.rows()).data(),
                               row_bytes(part), row_bytes(part), part.rows());
}
inline Matrix own_columns_of(const Context& context, const Tensor& whole) {
  Matrix columns = machine::matrix(whole);
  columns.cols = whole.cols() / context.tp.size();
  columns.data = whole.slice(context.tp.rank() * columns.cols, {columns.cols}).data();
  return columns;
}

// Returns a tensor for the values of `outside` inside of the region.
inline Tensor inside(const Context& context, const Tensor& outside) {
  if (!context.sequence_parallel) return outside;
  return context.tensor({context.all_rows(outside.rows()), outside.cols()}, Category::buffers);
}

// Gathered rows are in memory of `category`.
inline Tensor enter(const Context& context, const Tensor& outside,
                    Category category = Category::buffers) {
  if (!context.sequence_parallel) return outside;
  const Tensor inside =
      context.tensor({context.all_rows(outside.rows()), outside.cols()}, category);
  context.tp.all_gather(outside, inside);
  return inside;
}
inline void leave(const Context& context, const Tensor& inside, const Tensor& outside) {
  if (context.sequence_parallel)
    context.tp.reduce_scatter(inside, outside);
  else
    all_reduce_over_tp(context, outside);
}

// Rows [first, first + count) of all rows.
struct RowRange {
  std::int64_t first, count;
  Tensor of(const Tensor& all) const { return all.row_range(first, count); }
};
using OfRows = std::function<void(const Tensor& inside, RowRange rows)>;

// enter, and multiply for all rows. by_share: for the rows of one rank after the other, as soon as
// they are there.
inline Tensor enter_while(const Context& context, const Tensor& outside, Category category,
                          bool by_share, const OfRows& multiply) {
  if (!by_share || !context.sequence_parallel) {
    Tensor inside = enter(context, outside, category);
    multiply(inside, {0, inside.rows()});
    return inside;
  }
  const std::int64_t own = outside.rows();
  Tensor inside = context.tensor({context.all_rows(own), outside.cols()}, category);
  context.tp.all_gather_while(outside, inside, [&](int share) {
    multiply(inside, {share * own, own});
  });
  return inside;
}

// multiply for all rows, and leave. by_share: for the rows of one rank after the other, which are
// sent while the next ones are multiplied.
inline void leave_while(const Context& context, const Tensor& outside, bool by_share,
                        const OfRows& multiply) {
  const Tensor all = inside(context, outside);
  if (!by_share || !context.sequence_parallel) {
    multiply(all, {0, all.rows()});
    return leave(context, all, outside);
  }
  const std::int64_t own = outside.rows();
  context.tp.reduce_scatter_while(all, outside, [&](int share) {
    multiply(all, {share * own, own});
  });
}

// Calls work during the communication of leave.
inline void leave_beside(const Context& context, const Tensor& inside, const Tensor& outside,
                         const std::function<void()>& work) {
  context.tp.run_beside(context.sequence_parallel ? machine::Operation::reduce_scatter
                                                  : machine::Operation::all_reduce,
                        inside, outside, work);
}

}  // namespace layers

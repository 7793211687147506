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
// A matrix whose columns are split, [n, m/tp] on each rank: gather_columns all-gathers it into
// [n, m]; its conjugate, own_columns_of, sends nothing.

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

}  // namespace layers

#pragma once
// The conjugate operators at the borders of a tensor-parallel region: f and g of Shoeybi et al.
// 2019 (arXiv:1909.08053, figure 3), and with sequence parallelism those of Korthikanti et al. 2022
// (arXiv:2205.05198, figure 5), where a rank holds its own rows [tokens/tp, n] outside and all
// [tokens, n] inside:
//
//               forward         backward
//   CopyTo      identity        all-reduce       input of a column-parallel layer
//   ReduceFrom  all-reduce      identity         output of a row-parallel layer
//   GatherFrom  all-gather      reduce-scatter   the same two
//   ScatterTo   reduce-scatter  all-gather
//
// A matrix whose columns are cut, [n, m/tp] on each rank, can be put together as well:
// GatherColumns all-gathers it into [n, m]; its conjugate takes a rank's own columns and sends
// nothing.
//
// Layers call enter and leave, which take the pair that the context asks for. `inside` is what the
// region computes in, `outside` what is held between regions; without sequence parallelism they are
// one tensor. On one rank nothing happens.

#include "layers/context.h"
#include "machine/device/gemm.h"

namespace layers {

struct CopyTo {
  static machine::Tensor forward(const Context&, const machine::Tensor& x) { return x; }
  static void backward(const Context& context, const machine::Tensor& d_x) {
    if (context.tp.size() > 1) context.tp.all_reduce(d_x);
  }
};

struct ReduceFrom {
  static void forward(const Context& context, const machine::Tensor& y) {
    if (context.tp.size() > 1) context.tp.all_reduce(y);
  }
  static machine::Tensor backward(const Context&, const machine::Tensor& d_y) { return d_y; }
};

// What is gathered is taken under `category`.
struct GatherFrom {
  static machine::Tensor forward(const Context& context, const machine::Tensor& own,
                                 machine::Category category) {
    const machine::Tensor all =
        context.tensor({context.all_rows(own.rows()), own.cols()}, category);
    context.tp.all_gather(own, all);
    return all;
  }
  static void backward(const Context& context, const machine::Tensor& d_all,
                       const machine::Tensor& d_own) {
    context.tp.reduce_scatter(d_all, d_own);
  }
};

struct ScatterTo {
  static void forward(const Context& context, const machine::Tensor& all,
                      const machine::Tensor& own) {
    GatherFrom::backward(context, all, own);
  }
  static machine::Tensor backward(const Context& context, const machine::Tensor& d_own,
                                  machine::Category category) {
    return GatherFrom::forward(context, d_own, category);
  }
};

struct GatherColumns {
  static void forward(const Context& context, const machine::Tensor& part,
                      const machine::Tensor& whole) {
    const machine::Tensor blocks =
        context.tensor({context.tp.size() * part.rows(), part.cols()}, machine::Category::buffers);
    context.tp.all_gather(part, blocks);
    const std::size_t bytes = part.row_range(0, 1).bytes();
    for (std::int64_t block = 0; block < context.tp.size(); ++block)
      for (std::int64_t row = 0; row < part.rows(); ++row)
        context.stream().copy(
            whole.slice(row * whole.cols() + block * part.cols(), {part.cols()}).data(),
            blocks.row_range(block * part.rows() + row, 1).data(), bytes);
  }
  static machine::Matrix own(const Context& context, const machine::Tensor& whole) {
    machine::Matrix columns = machine::matrix(whole);
    columns.cols = whole.cols() / context.tp.size();
    columns.data = whole.slice(context.tp.rank() * columns.cols, {columns.cols}).data();
    return columns;
  }
};

// A tensor to compute the inside of `outside` into.
inline machine::Tensor inside(const Context& context, const machine::Tensor& outside) {
  if (!context.sequence_parallel) return outside;
  return context.tensor({context.all_rows(outside.rows()), outside.cols()},
                        machine::Category::buffers);
}

inline machine::Tensor enter(const Context& context, const machine::Tensor& outside) {
  return context.sequence_parallel
             ? GatherFrom::forward(context, outside, machine::Category::buffers)
             : CopyTo::forward(context, outside);
}
inline void enter_backward(const Context& context, const machine::Tensor& d_inside,
                           const machine::Tensor& d_outside) {
  if (context.sequence_parallel)
    GatherFrom::backward(context, d_inside, d_outside);
  else
    CopyTo::backward(context, d_outside);
}

inline void leave(const Context& context, const machine::Tensor& inside,
                  const machine::Tensor& outside) {
  if (context.sequence_parallel)
    ScatterTo::forward(context, inside, outside);
  else
    ReduceFrom::forward(context, outside);
}
inline machine::Tensor leave_backward(const Context& context, const machine::Tensor& d_outside,
                                      machine::Category category) {
  return context.sequence_parallel ? ScatterTo::backward(context, d_outside, category)
                                   : ReduceFrom::backward(context, d_outside);
}

}  // namespace layers

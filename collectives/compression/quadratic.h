#pragma once
// What a compressed all-reduce must converge on: gradient descent on a quadratic that ranks
// disagree about, x <- x - step_t / N * all_reduce(gradient_r(x)), with
//
//   f_r(x) = sum_i a_ri / 2 (x_i - target_i)^2 + d_ri x_i,   sum over ranks of d_ri = 0,
//
// so that the mean of the f_r is least at target, while on each rank (of two or more) the first
// `disputed` elements of the gradient are larger than all others, forever, and cancel in the sum.
// Top-k without feedback sends nothing else, and leaves the other elements where they started.
//
// With feedback, let E_t be the sum over ranks of what is held back before step t, and y_t = x_t -
// step_t / N E_t (Stich et al. 2018, arXiv:1809.07599, section 3). What is sent in step t is
// gradients + E_t - E_t+1 + rounding, hence, with the curvature h_i = mean of a_ri,
//
//   |y_t+1 - target| <= max_i |1 - step_t h_i| |y_t - target|
//                       + (step_t^2 max h |E_t| + (step_t - step_t+1) |E_t+1| + step_t |rounding|)
//                       / N
//
// and x is within step_t / N |E_t| of y. `bound` is this recursion, of the E that were measured: an
// error beyond it means that something was lost on the way. Steps of 2 / (t + 4) let it go to zero
// as 1 / t if E stays bounded.

#include "collectives/compression/compressed_all_reduce.h"

namespace collectives {

struct Descent {
  double start = 0;            // |x_0 - target|
  double error = 0;            // |x_T - target|
  double bound = 0;            // of error, if what is held back is used
  double unmoved = 0;          // |target| over the elements that are not disputed
  std::vector<double> errors;  // |x_t - target| after each step
};

namespace quadratic {

inline constexpr std::int64_t size = 16, disputed = 2;
inline constexpr int steps = 600;
// k = disputed; a threshold as large as the largest gradient, so that no residual outgrows it.
CompressionOptions options(int ranks, bool feedback);

}  // namespace quadratic

// compressed: made for quadratic::size elements over this communicator. Collective; all ranks get
// the same.
Descent descend(machine::World& world, Communicator& communicator, CompressedAllReduce& compressed);

}  // namespace collectives

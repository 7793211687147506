#pragma once
// A problem on which a compressed all-reduce must converge: gradient descent on a quadratic that
// differs between ranks, x <- x - step_t / N * all_reduce(gradient_r(x)), with
//
//   f_r(x) = sum_i a_ri / 2 (x_i - target_i)^2 + d_ri x_i,   sum over ranks of d_ri = 0.
//
// The minimum of the mean of the f_r is at target. But on each of two or more ranks the first
// `disputed` elements of the gradient are always larger than all others, and cancel in the sum.
// Top-k without feedback sends only these, and leaves the other elements at their start.
//
// With feedback, let E_t be the sum over ranks of the values held back before step t, and y_t = x_t
// - step_t / N E_t (Stich et al. 2018, arXiv:1809.07599, section 3). Step t sends gradients + E_t -
// E_t+1 + rounding. Hence, with the curvature h_i = mean of a_ri,
//
//   |y_t+1 - target| <= max_i |1 - step_t h_i| |y_t - target|
//                       + (step_t^2 max h |E_t| + (step_t - step_t+1) |E_t+1| + step_t |rounding|)
//                       / N
//
// and x is within step_t / N |E_t| of y. `bound` is this recursion with the measured E: an error
// beyond it means that values were lost. With steps of 2 / (t + 4) it goes to zero as 1 / t if E is
// bounded.

#include "collectives/compression/compressed_all_reduce.h"

namespace collectives {

struct Descent {
  double start = 0;            // |x_0 - target|
  double error = 0;            // |x_T - target|
  double bound = 0;            // of error, with feedback
  double unmoved = 0;          // |target| over the elements that are not disputed
  std::vector<double> errors;  // |x_t - target| after each step
};

namespace quadratic {

inline constexpr std::int64_t size = 16, disputed = 2;
inline constexpr int steps = 600;
// k = disputed. The threshold is the largest gradient, so that no residual outgrows it. At one
// standard deviation, every run sends its largest element.
CompressionOptions options(int ranks, bool feedback);

}  // namespace quadratic

// compressed: for quadratic::size elements over this communicator. device: of its tensors.
// Collective; the result is the same on all ranks.
Descent descend(machine::Device& device, Communicator& communicator,
                CompressedAllReduce& compressed);

}  // namespace collectives

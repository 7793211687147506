#pragma once
// How far an error of the gradient can carry AdamW's first step, lr g / (|g| + epsilon) for each
// element. An error d of at most |g| / 2 moves it by lr epsilon d / ((|g| + epsilon) (|g| / 2 +
// epsilon)) at most, one of up to |g| by lr, and a larger one turns the sign: 2 lr.

#include <vector>

namespace suite {

// A bound, in the 2-norm, over all errors whose 2-norm is at most `relative` times the gradient's.
// gradient: as the optimizer gets it, divided and clipped; its factor may be wrong by `factor`,
// relative. What is exactly zero (a token that does not occur) is so in any precision.
double first_step_bound(const std::vector<double>& gradient, double relative, double factor);

}  // namespace suite

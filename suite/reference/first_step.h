#pragma once
// A bound on the effect of an error of the gradient on an optimizer's first step, in the 2-norm.
//
// Adam's is lr g / (|g| + epsilon) for each element. An error d of at most |g| / 2 moves it by lr
// epsilon d / ((|g| + epsilon) (|g| / 2 + epsilon)) at most, one of up to |g| by lr, and a larger
// one turns the sign: 2 lr. RMSProp's, of smoothing a, is the same with lr and epsilon over sqrt(1
// - a). SGD's, with momentum or without, is lr g. If the decay is in the gradient, Adam's and
// RMSProp's may turn any sign.

#include <vector>

#include "zero/optimizers/optimizer.h"

namespace suite {

// A bound over all errors whose 2-norm is at most `relative` times the gradient's. gradient: the
// optimizer's input, divided and clipped; its factor may be wrong by `factor`, relative. An element
// that is exactly zero (a token that does not occur) is zero in any precision.
double first_step_bound(const zero::Rule& rule, const std::vector<double>& gradient,
                        double relative, double factor);

}  // namespace suite

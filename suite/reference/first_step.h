#pragma once
// A bound on the effect of an error of the gradient on an optimizer's first step, in the 2-norm.
//
// Adam's step is lr g / (|g| + epsilon) for each element. An error d of at most |g| / 2 changes the
// step by at most lr epsilon d / ((|g| + epsilon) (|g| / 2 + epsilon)), an error of up to |g| by
// lr. A larger error changes the sign: 2 lr. RMSProp's step with smoothing a is the same with lr
// and epsilon over sqrt(1 - a). 1-bit Adam's is the same with 1 - beta1 and sqrt(1 - beta2). Lion's
// step is lr times the sign of g, so epsilon is 0. SGD's step, with or without momentum, is lr g.
// If the gradient contains the decay, Adam and RMSProp may change any sign. LAMB's step is lr
// r(|u|) u, where u is Adam's direction with the decay and r the quotient of norms between its
// limits. r never grows with |u|, so an error d of u changes the step by at most lr |d| times the
// largest r on the way, which is that of |u| - |d|. Muon's step of a matrix M is lr scale O(M /
// |M|), where O applies an odd polynomial to the singular values. The largest slope of the
// polynomial bounds the change of O in the 2-norm, and a relative error e of M is one of at most 2
// e of M / |M|.

#include <vector>

#include "zero/optimizers/optimizer.h"
#include "zero/states/layout.h"

namespace suite {

// Returns a bound for all errors whose 2-norm is at most `relative` times the gradient's. gradient:
// the optimizer's input, divided and clipped. Its scale may have the relative error `factor`. An
// element that is exactly zero (of a token that does not occur) is zero in any precision. size: the
// norm of the parameter's values, for LAMB. matrix: the whole parameter's, for Muon.
double first_step_bound(const zero::Rule& rule, const std::vector<double>& gradient,
                        double relative, double factor, double size = 0,
                        const zero::MatrixRow& matrix = {});

}  // namespace suite

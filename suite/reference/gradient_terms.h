#pragma once
// The size of the terms of a gradient. A gradient that only passes through the scores of attention
// is a difference of terms as large as the gradients of the values, so its rounding error is
// relative to these. In a model with one parameter for queries, keys and values they are parts of
// one gradient. An encoder-decoder has other such parameters: the queries of cross attention, the
// norm before them, and the tables of the relative bias.

#include <functional>
#include <string>

namespace suite {

// layers: of the model. norm_of: the 2-norm of a parameter's gradient by name.
double size_of_terms(const std::string& name, int layers,
                     const std::function<double(const std::string&)>& norm_of);

}  // namespace suite

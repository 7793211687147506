#pragma once
// Sinkhorn's algorithm (Sinkhorn and Knopp 1967) as a router: scales rows and columns of
// exp(logits) in turn, until every token has the sum 1/tokens and every expert the sum 1/experts.
// The largest entries of a row are the token's choices (Clark et al. 2022, arXiv:2202.01169,
// section 4.1.1).

#include <cstdint>
#include <span>
#include <vector>

namespace layers {

// logits: [tokens, experts]. Returns the scaled matrix. Stops when the mean change of an expert's
// factor is at most 1e-4, as in Megatron-LM.
std::vector<double> sinkhorn(std::span<const double> logits, std::int64_t experts);

}  // namespace layers

#pragma once
// Tensors as doubles for comparisons: norms, a rank's part of a whole tensor, and a text that ranks
// send each other.

#include <string>
#include <string_view>
#include <vector>

#include "collectives/placement.h"

namespace suite {

double norm(const std::vector<double>& values);  // the 2-norm
double distance(const std::vector<double>& a, const std::vector<double>& b);

void append(std::vector<double>& to, const machine::Tensor& from);

// The part of a whole parameter that this rank of tp holds.
std::vector<double> shard(const std::vector<double>& whole, const collectives::Parameter& parameter,
                          int tp_rank);

// put appends values to a text; take removes them from its front.
void put(std::string& text, const std::vector<double>& values);
std::vector<double> take(std::string_view& text);

}  // namespace suite

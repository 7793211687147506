#pragma once
// Tensors as doubles for comparisons: norms and a rank's part of a whole tensor.

#include <vector>

#include "collectives/placement.h"

namespace suite {

double norm(const std::vector<double>& values);  // the 2-norm
double distance(const std::vector<double>& a, const std::vector<double>& b);

void append(std::vector<double>& to, const machine::Tensor& from);

// Returns this tp rank's part of a whole parameter.
std::vector<double> shard(const std::vector<double>& whole, const collectives::Parameter& parameter,
                          int tp_rank);

}  // namespace suite

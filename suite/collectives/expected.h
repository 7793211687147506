#pragma once
// What a collective must leave in every rank's output: the oracle, which knows the operations by
// their definitions and nothing of algorithms. Inputs are small integers, exact in any order and in
// every dtype as far as 64 ranks (in 8 floating bits only two ranks add to an element); the
// real-valued ones are compared by bounds on rounding.

#include <cstdint>
#include <vector>

#include "collectives/traffic_matrix.h"
#include "machine/device/kernels.h"
#include "machine/device/tensor.h"
#include "machine/link/link.h"
#include "suite/reference/bounded.h"

namespace suite {

struct Question {
  machine::Operation operation{};
  machine::Reduction reduction{};
  machine::Dtype dtype{};
  int ranks = 1, root = 0;
  std::int64_t count = 0;                               // elements of the whole, or of a share
  const collectives::TrafficMatrix* traffic = nullptr;  // of all_to_all_v
};

// Element `index` of rank's input. Of products, factors that keep their magnitude small.
double pattern(const Question& question, int rank, std::int64_t index);
// All of rank's output; integers wrap around as the dtype does.
std::vector<double> expected(const Question& question, int rank);

// Which input elements of all ranks meet in element `index` of rank's output, for what reduces.
std::int64_t source_index(const Question& question, int rank, std::int64_t index);

// The reduction of real numbers, one of each rank, in double, and how far a result of the dtype may
// lie from it in any order of the sum: one rounding an addition, ((1 + u)^{n-1} - 1) sum |x_i|
// (Higham 2002, section 4.2), one more for the division of avg and each product; max and min are
// exact.
Bounded reduce_exactly(const Question& question, const std::vector<double>& values);

}  // namespace suite

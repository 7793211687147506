#pragma once
// The oracle of collectives: the output that each rank must have, and the errors of an output. It
// follows from the operations' definitions and shares nothing with the algorithms.
//
// Inputs are small integers: exact in every order and dtype up to 64 ranks. In 8-bit floating
// dtypes only two ranks add to an element. Real inputs are compared by bounds on rounding.

#include <cstdint>
#include <string>
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

// Returns element `index` of the rank's input. For products: factors that keep the result small.
double pattern(const Question& question, int rank, std::int64_t index);
// Returns the rank's whole output. Integers wrap around as in the dtype.
std::vector<double> expected(const Question& question, int rank);

// Returns the index of the input elements that are reduced to element `index` of the rank's output.
std::int64_t source_index(const Question& question, int rank, std::int64_t index);

// Returns the reduction in double of real numbers, one per rank, and the largest error of a result
// in the dtype, for any order of the sum. A sum has one rounding per addition, ((1 + u)^{n-1} - 1)
// sum |x_i| (Higham 2002, section 4.2). Each product and the division of avg have one more. max and
// min are exact.
Bounded reduce_exactly(const Question& question, const std::vector<double>& values);

struct WrongElements {
  std::int64_t count = 0, first = 0, last = 0;
  std::string text;  // "5 of 2048 elements wrong, from 17 to 21; the first is 0x4040 (3), not …"
};
// Compares the bits of two tensors of one dtype and size.
WrongElements wrong_elements(const machine::Tensor& actual, const machine::Tensor& wanted);

}  // namespace suite

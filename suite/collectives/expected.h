#pragma once
// The oracle of collectives: the output that each rank must have, and the errors of an output. It
// follows from the operations' definitions and shares nothing with the algorithms.
//
// Inputs are small integers (machine/device/pattern.h), so the device that holds an output finds
// its errors. Real inputs are compared by bounds on rounding.

#include <cstdint>
#include <string>
#include <vector>

#include "collectives/traffic_matrix.h"
#include "machine/device/kernels.h"
#include "machine/device/pattern.h"
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

machine::Pattern pattern_of(const Question& question);
// Returns element `index` of the rank's input.
double pattern(const Question& question, int rank, std::int64_t index);
// Returns the parts of the rank's output, in order.
std::vector<machine::PatternPart> parts_of(const Question& question, int rank);
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
  double largest = 0;  // error; infinity for NaN
  std::string text;  // "5 of 2048 elements wrong, from 17 to 21; the first is 0x4040 (3), not …"
};
// Finds the elements of the rank's output that do not have the bits of the right value, or whose
// error exceeds a positive bound. Runs on the output's device and copies only the first wrong
// element. errors: error_words() of that device.
WrongElements wrong_elements(const machine::Tensor& output, const Question& question, int rank,
                             const machine::Tensor& errors, double bound = 0);
machine::Tensor error_words(machine::Device& device);

}  // namespace suite

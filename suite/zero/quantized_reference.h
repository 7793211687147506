#pragma once
// Bounds on the error of values and gradients that are sent in blocks of 64 elements with a few
// bits (ZeRO++: Wang et al. 2023, arXiv:2306.10209). Plain loops in double over the exact inputs.
// Shares no code with zero/ or the quantizer: only the format, by which the scale of a block is its
// largest magnitude over levels, rounded up to 8 bits, and a value errs by half a scale.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "machine/device/dtype.h"

namespace suite {

inline constexpr std::int64_t elements_of_block = 64;

// Returns the most by which an element of a block differs from its code's value.
inline double half_step(double largest, int levels) {
  const double scale = largest / levels * (1 + 0x1p-7) * (1 + 0x1p-23);
  return scale * (0.5 + levels * 0x1p-22);
}

struct QuantizedSums {
  int ranks = 1, near = 1, micro_batches = 1;  // near: ranks of a host; equal to ranks: one hop
  std::int64_t elements = 0;
  // The blocks as [begin, end) of elements; the others are not trained.
  std::vector<std::pair<std::int64_t, std::int64_t>> blocks = {};
};

// Returns for each element a bound on |sum of quantized contributions - sum of contributions|. A
// micro-batch codes the contribution of each rank, and with several hosts also each host's sum.
// contribution(index, element): of micro-batch index / ranks and rank index % ranks.
inline std::vector<double> quantization_bounds(
    const QuantizedSums& of,
    const std::function<double(int index, std::int64_t element)>& contribution) {
  constexpr int levels = 7;
  constexpr double of_sums = 1 + 0x1p-20;  // roundings of float in the sums of codes
  std::vector<double> bounds(static_cast<std::size_t>(of.elements), 0);
  for (const auto& [begin, end] : of.blocks)
    for (int micro_batch = 0; micro_batch < of.micro_batches; ++micro_batch) {
      double error = 0;
      for (int host = 0; host < of.ranks / of.near; ++host) {
        std::vector<double> sums(static_cast<std::size_t>(end - begin), 0);
        double error_here = 0;
        for (int rank = host * of.near; rank < (host + 1) * of.near; ++rank) {
          double largest = 0;
          for (std::int64_t i = begin; i < end; ++i) {
            const double term = contribution(micro_batch * of.ranks + rank, i);
            largest = std::max(largest, std::abs(term));
            sums[static_cast<std::size_t>(i - begin)] += term;
          }
          error_here += half_step(largest, levels);
        }
        double largest = 0;
        for (const double sum : sums) largest = std::max(largest, std::abs(sum));
        if (of.near < of.ranks) error_here += half_step((largest + error_here) * of_sums, levels);
        error += error_here;
      }
      for (std::int64_t i = begin; i < end; ++i)
        bounds[static_cast<std::size_t>(i)] += error * of_sums;
    }
  return bounds;
}

// Returns for each value a bound on the error of its code in 8 bits, decoded in the values' dtype.
// values: of one parameter.
inline std::vector<double> code_bounds(const std::vector<double>& values, machine::Dtype dtype) {
  const double lost = dtype == machine::Dtype::float16 ? 0x1p-25 : 0;  // below its normal numbers
  std::vector<double> bounds(values.size());
  for (std::size_t begin = 0; begin < values.size(); begin += elements_of_block) {
    const std::size_t end = std::min(values.size(), begin + elements_of_block);
    double largest = 0;
    for (std::size_t i = begin; i < end; ++i) largest = std::max(largest, std::abs(values[i]));
    const double error = half_step(largest, 127);
    for (std::size_t i = begin; i < end; ++i)
      bounds[i] = error + machine::unit_roundoff(dtype) * (std::abs(values[i]) + error) + lost;
  }
  return bounds;
}

}  // namespace suite

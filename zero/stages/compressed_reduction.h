#pragma once
// Sums gradients over dp by a compressed all-reduce with error feedback, one for each segment
// (layout.h). The ranks of tp and the two stages of a tied table hold the same gradients of a
// replicated segment. So they select the same elements of it, and their replicas stay equal. A
// whole bucket also contains parameters that differ between these ranks.
//
// A residual is in the units of raw gradients: sums over tokens, times the loss scale. Residuals,
// codes and sums are in the place of compression_place.h. If it is host memory, gradients on a GPU
// pass through staging memory.

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/compression/compressed_all_reduce.h"
#include "collectives/compression/volume.h"
#include "zero/stages/step_context.h"
#include "zero/states/compression_place.h"
#include "zero/states/compression_watch.h"

namespace zero {

// Returns the names of the algorithms that a step supports: those without a threshold in the units
// of the gradient, without hosts, and whose code of zero is zero. One bit has no zero, so the
// padding between parameters would enter the norm.
std::vector<std::string> gradient_compressions();
// Throws std::invalid_argument for an unknown algorithm and for options that it does not support.
// dp 1 compresses nothing.
void check_compression(int stage, const StepOptions& options, int dp, Dtype gradient_dtype);

// Returns the number of elements that reach the deviations, if values are normal.
std::int64_t selected_if_normal(const GradientCompression& compression, std::int64_t count);
// Returns the arguments of the closed formulas. selected: elements that the fullest rank sends, if
// they depend on the values.
collectives::CompressedCall compressed_call(const GradientCompression& compression, int dp,
                                            std::int64_t count, std::int64_t selected);

class CompressedReduction {
 public:
  explicit CompressedReduction(const StepContext& context);  // context: must outlive this
  // Replaces the gradients of a bucket by their sums on all ranks.
  void sum(const Bucket& bucket, const Tensor& gradients);

  const machine::Device* host() const { return place_.host(); }
  // By segment.
  std::vector<collectives::CompressedAllReduce::Selected> selected() const;

 private:
  const StepContext& context_;
  CompressionPlace place_;
  std::vector<std::unique_ptr<collectives::CompressedAllReduce>> sums_;  // by segment
};

}  // namespace zero

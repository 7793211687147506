#pragma once
// The matrix products of a training step without its other work, one after another: a lower bound
// of the step's time. They have the same shapes, strides, dtypes and factors. All products share
// their operands, so that caches help them at least as much as in the step.

#include <vector>

#include "machine/device/gemm.h"

namespace suite {

class StepProducts {
 public:
  StepProducts(machine::Device& device, const std::vector<machine::GemmLog::Product>& products);
  void run();
  double flops() const;

 private:
  machine::Device& device_;
  std::vector<machine::GemmLog::Product> products_;
  std::vector<machine::Tensor> operands_;  // a, b and c of each dtype that occurs
};

}  // namespace suite

#pragma once
// The matrix products of a training step run alone, one after another: what the step would take if
// it consisted of nothing else. Same shapes, strides, dtypes and factors, on operands of their own,
// which are the same for all products, so that caches help them at least as much as in the step.

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
  std::vector<machine::Tensor> operands_;  // of every dtype that there is: a, b, c
};

}  // namespace suite

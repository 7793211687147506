#pragma once
// One part y = gelu(x W) and its gradients in double, from the inputs of the stage, with bounds on
// the error of its dtype. Shares no code with the kernels. Checks a sample: three columns for y and
// the weights' gradient, two rows for the input's.
//
// Parts are judged one by one. A bound carried through a chain of parts grows by the sum over a
// column of |W|, some 0.8 sqrt(2 hidden / pi) for each part, and soon means nothing. The comparison
// with one device shows that the chain keeps every bit.

#include <cstdint>
#include <string>
#include <vector>

#include "harness/judge/judge.h"
#include "machine/device/dtype.h"

namespace suite {

// One micro-batch, all [tokens, hidden].
struct PartObserved {
  std::vector<double> x, y, d_y, d_x;
};

void judge_part(harness::Judge& judge, const std::string& name, machine::Dtype dtype,
                std::int64_t tokens, std::int64_t hidden, const std::vector<double>& weight,
                const std::vector<double>& weight_gradient,
                const std::vector<PartObserved>& micro_batches);

}  // namespace suite

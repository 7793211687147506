// Claim: a linear layer cut along its output computes what the whole one does, within the roundings
// of its dtype; sends one all-reduce of its input's gradient and nothing forward; holds 1/tp of
// weight and bias; and leaves the input's gradient with the same bits on every rank (Shoeybi et al.
// 2019, arXiv:1909.08053, section 3).
#include "suite/layers/linear_unit.h"

namespace suite {
namespace {

struct ColumnParallelLinear : LinearUnit<layers::ColumnParallelLinear> {
  static constexpr std::string_view name = "column_parallel_linear";
  static constexpr std::string_view about = "a linear layer cut along its output: all three passes";
  using LinearUnit::LinearUnit;
};

const bool registered = harness::add<ColumnParallelLinear>();

}  // namespace
}  // namespace suite

// Claim: a linear layer cut along its output computes what the whole one does, within the roundings
// of its dtype; sends one all-reduce of its input's gradient and nothing forward; holds 1/tp of
// weight and bias; and leaves the input's gradient with the same bits on every rank (Shoeybi et al.
// 2019, arXiv:1909.08053, section 3).
#include "suite/layers/linear_layer.h"

namespace suite {
namespace {

class ColumnParallelLinear final : public JudgedLinear<layers::ColumnParallelLinear> {
 public:
  static constexpr std::string_view name = "column_parallel_linear";
  static constexpr std::string_view about = "a linear layer cut along its output: all three passes";
  ColumnParallelLinear(const layers::Context& context, const LayerCase& c)
      : JudgedLinear(context, std::string(name), c) {}
};

const bool registered = harness::add<LayerUnit<ColumnParallelLinear>>();

}  // namespace
}  // namespace suite

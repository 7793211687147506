// Claim: a linear layer cut along its input computes what the whole one does, within the roundings
// of its dtype; sends one all-reduce of its output and nothing backward; holds 1/tp of the weight
// and the whole bias; and leaves its output with the same bits on every rank (Shoeybi et al. 2019,
// arXiv:1909.08053, section 3).
#include "suite/layers/linear_layer.h"

namespace suite {
namespace {

class RowParallelLinear final : public JudgedLinear<layers::RowParallelLinear> {
 public:
  static constexpr std::string_view name = "row_parallel_linear";
  static constexpr std::string_view about = "a linear layer cut along its input: all three passes";
  RowParallelLinear(const layers::Context& context, const LayerCase& c)
      : JudgedLinear(context, std::string(name), c) {}
};

const bool registered = harness::add<LayerUnit<RowParallelLinear>>();

}  // namespace
}  // namespace suite

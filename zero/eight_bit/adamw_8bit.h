#pragma once
// 8-bit AdamW (Dettmers et al. 2022, arXiv:2110.02861) of a rank's elements: the moments of a
// parameter are codes (machine/device/dynamic_codes/adamw_8bit.h) if the plan names it
// (GradientRow::is_matrix). AdamW updates all others. The training step names the parameters of at
// least min_8bit_size elements on a rank of tp, as bitsandbytes does, however ZeRO cuts them.
//
// Parameters with codes have their own buckets, and parameters and shards begin at multiples of a
// block (LayoutOptions::alignment). So blocks count from the first element of their parameter, and
// no shard cuts one: all ZeRO stages and all degrees of dp compute the same codes. tp cuts
// parameters, so its degree changes blocks. A rank holds 2 + 8/256 bytes an element.

#include <vector>

#include "zero/matrices/matrix_context.h"
#include "zero/offload/owned_optimizer.h"

namespace zero {

// Throws std::invalid_argument for options that 8-bit AdamW does not support.
void check_adamw_8bit(const Rule& rule, const MatrixLimits& limits);

MatrixBytes adamw_8bit_bytes(const GradientPlan& plan, const Layout& layout, bool sharded);

class AdamW8BitOptimizer final : public OwnedOptimizer {
 public:
  // Throws std::logic_error for a layout that cuts blocks.
  AdamW8BitOptimizer(const Rule& rule, const Layout& layout, const std::vector<OwnedRange>& owned);

  void update(const std::vector<Tensor>& gradients, double gradient_scale,
              const Updated& updated) override;
  void values_changed() override;
  void set_steps(std::int64_t steps) override;
  void visit(bool writes, const Visit& call) override;

 private:
  // The elements of one bucket in an owned range.
  struct Run {
    Range range;
    std::size_t owned = 0;
    std::int64_t first = 0;  // element of the owned range
    Optimizer optimizer;
  };
  std::size_t num_owned_;
  std::vector<Run> runs_;
};

}  // namespace zero

#pragma once
// What enters a group of layers that is recomputed, kept from forward until backward: as it is;
// partitioned over tp, each rank keeping its share and all gathering it again (P_a of ZeRO-R:
// Rajbhandari et al. 2020, arXiv:1910.02054, section 6.1; DeepSpeed's partition_activations,
// Megatron-LM's --distribute-saved-activations); and either of the two in host memory
// (P_a+cpu; DeepSpeed's cpu_checkpointing).
//
//   Checkpoints checkpoints(context, options, host);
//   Tensor kept = checkpoints.keep(x);                        // and x may go
//   Tensor x = checkpoints.restore(std::move(kept), shape, category);
//
// On the device x takes M bytes, its share M/t, what is in host memory nothing; M or M/t go down
// and come up again. What is kept is counted as activations of where it is. The host may be another
// device of host memory: the same path between two memories.

#include <cstddef>

#include "layers/context.h"
#include "layers/models/activation_options.h"

namespace layers {

class Checkpoints {
 public:
  // host: a device that the host can read and that outlives this; not null with cpu_checkpointing,
  // std::invalid_argument otherwise.
  Checkpoints(const Context& context, const ActivationOptions& options, machine::Device* host);

  // Whether what is kept is not x itself.
  bool apart() const { return distributed_ || host_; }

  // Where it is apart: a copy of x, or of this rank's share. Else x.
  Tensor keep(const Tensor& x);
  // x again, in memory of that category where it was apart; what was kept is given back.
  // Collective over tp where it was partitioned.
  Tensor restore(Tensor kept, Shape shape, Category category);

  struct Moved {
    std::size_t down = 0, up = 0;  // bytes, to the host and back
    bool operator==(const Moved&) const = default;
  };
  Moved moved() const { return moved_; }  // so far

 private:
  const Context& context_;
  const bool distributed_;
  machine::Device* const host_;  // null: what is kept stays on the device
  Moved moved_;
};

}  // namespace layers

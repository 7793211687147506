#pragma once
// The input of a group of layers that is recomputed, kept from forward until backward, whole or
// partitioned over tp. If it is partitioned, each rank keeps its part, and all ranks gather it
// before backward (P_a of ZeRO-R: Rajbhandari et al. 2020, arXiv:1910.02054, section 6.1;
// DeepSpeed's partition_activations, Megatron-LM's --distribute-saved-activations). Either can be
// in host memory (P_a+cpu; DeepSpeed's cpu_checkpointing).
//
//   Checkpoints checkpoints(context, options, host);
//   auto room = checkpoints.make_room(groups, x.size());      // of a micro-batch
//   Tensor kept = checkpoints.keep(x, room);                  // then x may be freed
//   Tensor x = checkpoints.restore(std::move(kept), shape, category);
//
// On the device x takes M bytes, its part M/t, and a checkpoint in host memory takes 0. M or M/t
// bytes move to the host and back. A checkpoint counts as activations of the device that stores it.
// With contiguous_memory_optimization the checkpoints of a micro-batch are in one allocation, which
// is free after the last of them.
// The host may be another device of host memory, with the same path between two memories.

#include <cstddef>
#include <cstdint>
#include <optional>

#include "layers/context.h"
#include "layers/models/activation_options.h"
#include "machine/device/arena/contiguous_arena.h"

namespace layers {

class Checkpoints {
 public:
  // host: a device that the host can read and that outlives this object. Throws
  // std::invalid_argument if it is null with cpu_checkpointing.
  Checkpoints(const Context& context, const ActivationOptions& options, machine::Device* host);

  // Returns whether the checkpoint is a copy, not x itself.
  bool apart() const { return distributed_ || host_; }

  // Returns memory for at least `count` checkpoints of tensors of this size, or nothing if they
  // have separate memory.
  std::optional<machine::ContiguousArena> make_room(std::size_t count, std::int64_t elements) const;
  // Returns a copy of x, or of this rank's part, if apart(); otherwise x.
  Tensor keep(const Tensor& x, std::optional<machine::ContiguousArena>& room);
  // Returns x, in memory of that category if apart(), and frees the checkpoint. Collective over tp
  // if it was partitioned.
  Tensor restore(Tensor kept, Shape shape, Category category);

  struct Moved {
    std::size_t down = 0, up = 0;  // bytes, to the host and back
    bool operator==(const Moved&) const = default;
  };
  Moved moved() const { return moved_; }  // so far

 private:
  std::int64_t kept_of(std::int64_t elements) const {
    return distributed_ ? elements / context_.tp.size() : elements;
  }
  machine::Device& place() const { return host_ ? *host_ : context_.device; }

  const Context& context_;
  const bool distributed_, contiguous_;
  const std::size_t least_room_;  // checkpoints
  machine::Device* const host_;   // null: checkpoints stay on the device
  Moved moved_;
};

}  // namespace layers

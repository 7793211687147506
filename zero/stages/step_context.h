#pragma once
// The facts that all parts of a step share: the ZeRO stage, the states, the plan, the groups and
// the options. The constructor checks them; a step keeps them constant.

#include <vector>

#include "collectives/communicator/communicator.h"
#include "machine/device/kernels.h"
#include "zero/stages/step_options.h"
#include "zero/states/flat_states.h"

namespace zero {

// A communicator is null if its group has one member or does not contain this rank.
struct Communicators {
  collectives::Communicator* tp = nullptr;
  collectives::Communicator* pp = nullptr;
  collectives::Communicator* dp = nullptr;
  collectives::Communicator* embedding = nullptr;
  collectives::Communicator* edp = nullptr;
  collectives::Communicator* hpz = nullptr;  // zero_plus_plus/secondary_shards.h
  // zero_plus_plus/quantized_gradients.h; null if there is one hop
  collectives::Communicator *qgz_near = nullptr, *qgz_far = nullptr;

  collectives::Communicator* over(Over group) const {
    return group == Over::embedding ? embedding
           : group == Over::tp      ? tp
           : group == Over::edp     ? edp
                                    : dp;
  }
};

// Parameters that are used together.
using Part = std::vector<Parameter*>;

// Returns whether ranks own shards: in stage 1 or above, if several ranks hold a parameter. Throws
// std::invalid_argument for an unknown stage.
bool is_sharded(int stage, const GradientPlan& plan);

// Returns whether a step all-reduces gradients over dp, and does not reduce-scatter them.
inline bool all_reduces_gradients(int stage, const StepOptions& options) {
  return stage == 0 || (stage < 3 && !options.reduce_scatters);
}
// Returns whether owners broadcast their updated values one after another, and do not all-gather.
inline bool broadcasts_values(int stage, const StepOptions& options) {
  return (stage == 1 || stage == 2) && !options.all_gathers_values;
}
// Throws std::invalid_argument for options that do not support experts whose degree of tensor
// parallelism is not tp. Their buckets have groups that tp is a part of.
void check_experts(const StepOptions& options, const Experts& experts, int tp);
// Returns the divisor of gradients before their sum over dp.
inline double predivision(const StepOptions& options, int dp) {
  return dp == 1 ? 1 : options.prescale_gradients ? dp : options.gradient_predivide_factor;
}

struct StepContext {
  // Throws std::invalid_argument for an option out of range, and for overlap_comm over a link
  // that neither another thread may use nor works in its own stream; std::logic_error if a group
  // that the plan reduces over has no communicator, or one of another size.
  StepContext(int stage, FlatStates& states, const GradientPlan& plan, Communicators communicators,
              StepOptions options);

  const Layout& layout() const { return states.layout(); }
  const Bucket& bucket(std::size_t index) const { return layout().buckets[index]; }
  // Returns the ranks that hold and reduce a bucket; null if it is only this one.
  collectives::Communicator* holders(const Bucket& bucket) const {
    return communicators.over(bucket.over);
  }
  int shard_index(const Bucket& bucket) const { return layout().index(bucket, dp_rank()); }
  int dp_rank() const { return plan.dp > 1 ? communicators.dp->rank() : 0; }
  machine::Device& device() const { return states.device(); }
  machine::Kernels& kernels() const { return device().stream().kernels(); }
  // Returns whether transfers over dp run in the stream of the group's link, in parallel with the
  // device's.
  bool transfers_apart() const;
  // Returns the stream of a transfer's work.
  machine::Stream& transfer_stream() const {
    return transfers_apart() ? communicators.dp->stream() : device().stream();
  }
  // Returns the dtype of gradients on the wire over dp.
  Dtype wire_dtype() const;
  // Returns whether gradients are all-reduced over dp, not reduce-scattered.
  bool all_reduces() const { return all_reduces_gradients(stage, options); }
  // With poison_freed, fills memory that is freed or not yet valid with NaN.
  void poison(const Tensor& freed) const;

  int stage;
  FlatStates& states;
  GradientPlan plan;
  Communicators communicators;
  StepOptions options;
  bool sharded;  // is_sharded
};

}  // namespace zero

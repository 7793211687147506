#pragma once
// The facts of a step that optimizers of whole matrices need. A communicator is null if its group
// has one member.

#include <string>

#include "collectives/communicator/communicator.h"
#include "machine/device/kernels.h"
#include "zero/states/layout.h"

namespace zero {

struct MatrixContext {
  machine::Device& device;
  const GradientPlan& plan;  // outlives the optimizer, as the layout does
  const Layout& layout;
  collectives::Communicator *tp, *dp, *edp;
  bool sharded;  // over dp
  std::string all_gather, all_reduce;

  machine::Kernels& kernels() const { return device.stream().kernels(); }
  Dtype wide() const { return collectives::gradient_dtype(plan.value_dtype); }
  int dp_rank() const { return plan.dp > 1 ? dp->rank() : 0; }
  const GradientRow& row(int at) const { return plan.rows[static_cast<std::size_t>(at)]; }
};

// Bytes of their states, and of their buffers during an update.
struct MatrixBytes {
  std::size_t states = 0, buffers = 0;
};

// The options that these optimizers do not support.
struct MatrixLimits {
  Dtype value_dtype{}, gradient_dtype{};
  int ep = 1;
  bool offloads = false;
  std::string compression = {};
};

}  // namespace zero

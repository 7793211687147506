#pragma once
// The sum of squares of the whole model's gradient, each element once: a rank adds its squares
// divided by the replicas of the element, and data-parallel copies, which are equal once reduced,
// are added only by their shard's owner. Sums go over tp, pp, dp, in this order.
//
// The squares are added up shard by shard and the shards in order, even if nothing is sharded, so
// all stages with one layout get the same bits. norm_buffers counts the doubles that this takes.

#include <functional>
#include <string>
#include <vector>

#include "collectives/communicator/communicator.h"
#include "machine/device/tensor.h"
#include "zero/states/layout.h"

namespace zero {

// The doubles in which the norm is added up.
struct NormBuffers {
  std::int64_t squares = 0, partials = 0, gathered = 0;
};
NormBuffers norm_buffers(const GradientPlan& plan, const Layout& layout, bool sharded);

class GlobalNorm {
 public:
  // sharded: a rank of dp has the gradients of its own shards only.
  GlobalNorm(machine::Device& device, const GradientPlan& plan, const Layout& layout,
             collectives::Communicator* tp, collectives::Communicator* pp,
             collectives::Communicator* dp, bool sharded, std::string all_gather);

  // Collective; gradients: of a range of the flat buffers that this rank owns.
  double sum_of_squares(const std::function<Tensor(Range)>& gradients);

 private:
  std::vector<double> sum_over(collectives::Communicator* communicator, std::vector<double> mine);

  machine::Device& device_;
  const Layout& layout_;
  collectives::Communicator *tp_, *pp_, *dp_;  // dp_: null unless sharded
  std::string all_gather_;
  Tensor squares_;   // double, one for each segment of each owned shard
  Tensor partials_;  // double, one for each owned shard
  Tensor gathered_;  // double, the partials of every rank of the largest group
};

}  // namespace zero

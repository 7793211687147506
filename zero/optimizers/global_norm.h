#pragma once
// The sum of squares of the whole model's gradient. Each element counts once, because a rank
// divides its squares by the replicas of the element. Data-parallel copies are equal after the
// reduction, and only their shard's owner adds them. Sums run over tp, pp and dp, in this order.
//
// The squares are added up shard by shard and the shards in order, also without sharding. So all
// stages with one layout get the same bits. norm_buffers counts the doubles.

#include <functional>
#include <string>
#include <vector>

#include "collectives/communicator/communicator.h"
#include "machine/device/tensor.h"
#include "zero/states/layout.h"

namespace zero {

// Numbers of doubles for the sums of the norm.
struct NormBuffers {
  std::int64_t squares = 0, partials = 0, gathered = 0;
};
// Returns whether a rank of dp adds up its own shards, and the ranks add up their sums: if
// gradients are sharded, or if experts have other replicas.
inline bool norm_is_sharded(bool sharded, const GradientPlan& plan) {
  return sharded || plan.experts_apart();
}
NormBuffers norm_buffers(const GradientPlan& plan, const Layout& layout, bool sharded);

// Gathers each rank's doubles, `mine` of the size of `partials`, and returns their sums in the
// order of the ranks, so all ranks and algorithms get the same bits. gathered: memory for the
// doubles of all ranks. A null communicator has one rank.
std::vector<double> sum_over_ranks(collectives::Communicator* communicator,
                                   std::vector<double> mine, const Tensor& partials,
                                   const Tensor& gathered, const std::string& all_gather);

class GlobalNorm {
 public:
  // sharded: norm_is_sharded.
  GlobalNorm(machine::Device& device, const GradientPlan& plan, const Layout& layout,
             collectives::Communicator* tp, collectives::Communicator* pp,
             collectives::Communicator* dp, bool sharded, std::string all_gather);

  // Collective. gradients: returns the gradients of a range of the flat buffers that this rank
  // owns.
  double sum_of_squares(const std::function<Tensor(Range)>& gradients);

 private:
  machine::Device& device_;
  const Layout& layout_;
  collectives::Communicator *tp_, *pp_, *dp_;  // dp_: null unless sharded
  std::string all_gather_;
  Tensor squares_;   // double, one for each segment of each owned shard
  Tensor partials_;  // double, one for each owned shard
  Tensor gathered_;  // double, the partials of every rank of the largest group
};

}  // namespace zero

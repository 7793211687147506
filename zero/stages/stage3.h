#pragma once
// ZeRO stage 3, P_os+g+p: Rajbhandari et al. 2020, arXiv:1910.02054, sections 5.3 and 7.2. In
// addition to stage 2's gradients a rank shards the values. The buckets of a part are gathered
// before it is used and freed after, in forward, in backward and in recomputation. If a bucket has
// several parts (LayoutOptions::parts), they are gathered together. Persistent buckets stay whole
// on all ranks and are published after the update, as in stage 1.
//
// Prefetching (prefetch.h): the stage records the uses of a pass (a micro-batch, or with pipelines
// a forward or backward of a chunk). The next pass of its number gathers ahead by them as long as
// its uses are the same, but not beyond its end. So every use gathers each of its buckets exactly
// once, with and without prefetching. With stage3_max_reuse_distance a bucket of a known use may
// stay for a later use of the pass.
//
// A use outside of passes (evaluation, oracles) gathers and frees in the same way.
//
// With zero_hpz_partition_size (zero_plus_plus/secondary_shards.h) only the first gather of a
// bucket in a micro-batch runs over dp. With zero_quantized_weights (quantized_weights.h) gathers
// over dp in a pass send codes, and with zero_quantized_gradients (quantized_gradients.h) so does
// the reduction.
//
// With offload_param (offload_param.h) the shards of gathered buckets are not on the device. They
// are copied to their place when a bucket is gathered, and are read ahead in that order.

#include <map>

#include "zero/stages/prefetch.h"
#include "zero/stages/stage2.h"
#include "zero/zero_plus_plus/quantized_gradients.h"
#include "zero/zero_plus_plus/quantized_weights.h"
#include "zero/zero_plus_plus/secondary_shards.h"

namespace zero {

class Stage3 final : public Stage2 {
 public:
  explicit Stage3(StepContext context);
  ~Stage3() override { finish(); }

  void before_use(const Part& part) override;
  void after_use(const Part& part) override;
  OffloadTraffic moved() const override;
  std::string offload_note() const override;
  OffloadedValues* offloaded_values() { return offloaded_.get(); }  // for tests; may be null

 private:
  struct Live {
    Tensor whole;  // empty if the bucket is not gathered
    Transfers::Ticket ticket = 0;
    int users = 0;
    bool stays = false;  // gathered after its last use
  };
  Published published(std::size_t bucket) const override;
  Tensor sum_over_dp(const Bucket& bucket, const Tensor& gradients,
                     const Tensor& wire) const override;
  void close_pass() override;
  void values_changed() override;
  std::vector<int> buckets_of(const Part& part) const;  // without persistent ones
  void make_optimizer_of_offloaded();
  Tensor shard_of(std::size_t bucket) const;
  void fetch(int index);
  bool is_in_group(std::size_t bucket) const;  // its next gather
  void drop(int index);
  void follow(const std::vector<int>& use);

  Tensor value_shards_;                        // [own_value_elements], without offloaded values
  std::vector<std::int64_t> in_value_shards_;  // by bucket
  std::unique_ptr<OffloadedValues> offloaded_;
  OffloadTraffic moved_before_;                 // before the first step
  std::unique_ptr<SecondaryShards> secondary_;  // null without
  std::unique_ptr<QuantizedWeights> quantized_weights_;
  std::unique_ptr<QuantizedGradients> quantized_gradients_;
  std::vector<bool> gathered_;  // by bucket, in this pass
  std::vector<Live> live_;      // by bucket
  struct Known {                // of the previous pass of a number
    Uses uses;
    Uses stay;  // buckets that stay gathered (stage3_max_reuse_distance)
    std::vector<std::vector<int>> ahead;
    std::vector<int> fetched;  // the buckets in the order of their gathers
  };
  std::map<int, Known> known_;
  Uses uses_;  // of this pass
  bool as_known_ = false;
};

}  // namespace zero

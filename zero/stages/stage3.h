#pragma once
// ZeRO stage 3, P_os+g+p: Rajbhandari et al. 2020, arXiv:1910.02054, sections 5.3 and 7.2. Beside
// stage 2's, a rank keeps its shards of the values only. The buckets of a part are gathered before
// it is used and freed after, in forward and in backward (and where forward is run again); a part
// that has no bucket to itself (LayoutOptions::parts) brings its neighbours along. Persistent
// buckets stay whole on all ranks and are published after the update, as in stage 1.
//
// Ahead (prefetch.h): the uses of a micro-batch are noted, and the next one gathers by them, as
// long as it goes the same way; nothing is gathered ahead over the end of a micro-batch. So every
// use gathers each of its buckets exactly once, with and without.
//
// A use outside of micro-batches (evaluation, oracles) gathers and frees the same.
//
// With offload_param (offload_param.h) the shards of what is gathered are not on the device: they
// come up to their place when a bucket is gathered, and are expected in the order in which that
// will be.

#include "zero/stages/prefetch.h"
#include "zero/stages/stage2.h"

namespace zero {

class Stage3 final : public Stage2 {
 public:
  explicit Stage3(StepContext context);
  ~Stage3() override { finish(); }

  void before_use(const Part& part) override;
  void after_use(const Part& part) override;
  OffloadTraffic moved() const override;
  std::string offload_note() const override;
  OffloadedValues* offloaded_values() { return offloaded_.get(); }  // for tests; null: none are

 private:
  struct Live {
    Tensor whole;  // empty where only the shards are here
    Transfers::Ticket ticket = 0;
    int users = 0;
  };
  Published published(std::size_t bucket) const override;
  void close_micro_batch() override;
  std::vector<int> buckets_of(const Part& part) const;  // without persistent ones
  void make_optimizer_of_offloaded();
  Tensor shard_of(std::size_t bucket) const;
  void fetch(int bucket);
  void drop(int bucket);
  void follow(const std::vector<int>& use);

  Tensor value_shards_;  // [value_elements / dp], without those that are offloaded
  std::vector<std::int64_t> in_value_shards_;  // by bucket
  std::unique_ptr<OffloadedValues> offloaded_;
  OffloadTraffic moved_before_;  // the first step
  std::vector<Live> live_;       // by bucket
  Uses uses_, known_uses_;       // of this micro-batch, of the one before
  std::vector<std::vector<int>> ahead_;
  std::vector<int> fetched_;  // in what order, as known
  bool as_known_ = false;
};

}  // namespace zero

#pragma once
// An optimizer whose states (master copy and moments) live in a file: ZeRO-Infinity's optimizer
// offload (Rajbhandari et al. 2021, arXiv:2104.07857). Its clients see an Optimizer, and its values
// get the same bits.
//
// The range is updated sub-group by sub-group. The states of one lie together in the file, so that
// it is one read and one write; with buffer_count buffers, the next are read and the last ones
// written while one is updated. A step reads and writes every state once: 12 bytes an element each
// way for Adam over bfloat16, and what io_alignment adds to a sub-group.
//
// On the device's ledger are the buffers alone, as swap_bytes says, whatever the range's size; the
// mask is kept as its runs, and of one sub-group as bytes.

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "zero/optimizer.h"
#include "zero/partition.h"
#include "zero/swap_file.h"

namespace zero {

// Names and defaults are DeepSpeed's. Sizes are elements.
struct NvmeOptions {
  SwapOptions swap = {};
  std::int64_t sub_group_size = 1'000'000'000;
  int buffer_count = 4;
  std::int64_t buffer_size = 100'000'000;  // a longer sub-group is cut
};

// The buffers of a range, in bytes: of one sub-group's states, of all of them, and of the mask
// (where elements of one sub-group differ).
struct SwapBytes {
  std::size_t slot = 0, buffers = 0, mask = 0;
  std::int64_t groups = 0;
};
SwapBytes swap_bytes(const Rule& rule, machine::Dtype value, std::int64_t elements,
                     const NvmeOptions& options);

class NvmeOptimizer {
 public:
  // As Optimizer; values on the host. Throws std::invalid_argument naming the option,
  // machine::MachineError what SwapFile says.
  NvmeOptimizer(Rule rule, machine::Tensor values, const std::vector<std::uint8_t>& decay_mask,
                const NvmeOptions& options);

  // As Optimizer's. After an error nothing is known of the states: it goes up, and every later call
  // throws std::logic_error.
  void update(const machine::Tensor& gradient, double gradient_scale);
  void values_changed();

  Rule& rule() { return rule_; }
  std::int64_t steps() const { return steps_; }
  // Every sub-group in order, with views that are there during the call; what it changes is kept if
  // `writes`. For checkpoints and oracles.
  using Visit = std::function<void(Range, const RangeStates&)>;
  void visit(bool writes, const Visit& call);
  void set_steps(std::int64_t steps) { steps_ = steps; }  // of states that were loaded

  std::string note() const { return swap_ ? swap_->note() : ""; }
  IoCounts counts() const { return swap_ ? swap_->counts() : IoCounts{}; }
  SwapFile* swap_file() { return swap_.get(); }  // for tests; null: there are no states

 private:
  Range range(std::int64_t group) const;
  RangeStates views(std::int64_t group) const;
  machine::Tensor transferred(std::int64_t group) const;
  machine::Tensor& buffer(std::int64_t group) {
    return buffers_[static_cast<std::size_t>(group) % buffers_.size()];
  }
  void set_mask(Range range);
  void pass(bool reads, bool writes, const Visit& call);

  Rule rule_;
  machine::Tensor values_;
  KeptStates kept_;
  std::int64_t group_size_ = 0, groups_ = 0;
  std::vector<Range> decayed_;  // where the mask is not zero
  machine::Memory mask_;
  Decay decay_ = Decay::everywhere;  // of the sub-group at hand
  std::vector<machine::Tensor> buffers_;
  std::unique_ptr<SwapFile> swap_;
  std::int64_t steps_ = 0;
  bool broken_ = false;
};

}  // namespace zero

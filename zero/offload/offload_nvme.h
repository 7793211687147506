#pragma once
// An optimizer whose states (master copy and moments) live in a file: ZeRO-Infinity's optimizer
// offload (Rajbhandari et al. 2021, arXiv:2104.07857). Its values get the same bits as an
// Optimizer's.
//
// Ranges are updated sub-group by sub-group, none of which reaches into two. The states of one lie
// together in the file, so that it is one read and one write; with buffer_count buffers, the next
// are read and the last ones written while one is updated. A step reads and writes every state
// once: 12 bytes an element each way for Adam over bfloat16, and what io_alignment adds to a
// sub-group.
//
// Values stay on their device, which may be one that the host cannot read; where it is the host,
// the same path goes between two memories. A sub-group's gradients go down (with them values that
// are their own master, which no file has) and its values come up through two staging slots: while
// one is updated, the next goes down and the last comes up. One thread copies both ways, in turn:
// of Adam over bfloat16 the file moves four times as much. An element's gradient is moved down and
// its value up, one that is its own master both ways; values that have a home elsewhere are updated
// there and do not move.
//
// On the host's ledger are the buffers alone, as swap_bytes says, whatever the ranges' sizes; the
// mask is kept as its runs, and of one sub-group as bytes.

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "zero/offload/owned_optimizer.h"
#include "zero/offload/swap_file.h"
#include "zero/offload/worker.h"

namespace zero {

// Names and defaults are DeepSpeed's. Sizes are elements.
struct NvmeOptions {
  SwapOptions swap = {};
  std::int64_t sub_group_size = 1'000'000'000;
  int buffer_count = 4;
  std::int64_t buffer_size = 100'000'000;  // a longer sub-group is cut
  // For tests: called before each phase of a sub-group, by the thread that does it.
  std::function<void(OffloadPhase, std::int64_t group)> before = {};
};

void check(const NvmeOptions& options);  // throws std::invalid_argument naming the option

// For ranges of these sizes, in bytes: buffers of one sub-group's states, of all of them, of the
// mask (where elements of one sub-group differ) and of the staging; what an update reads, and
// writes, and what it moves each way. away: of those ranges, whether values have a home elsewhere.
struct SwapBytes {
  std::size_t slot = 0, buffers = 0, mask = 0, staging = 0, of_pass = 0;
  std::size_t down = 0, up = 0;
  std::int64_t groups = 0;
};
SwapBytes swap_bytes(const Rule& rule, machine::Dtype value, const std::vector<std::int64_t>& sizes,
                     const NvmeOptions& options, const std::vector<bool>& away = {});
inline SwapBytes swap_bytes(const Rule& rule, machine::Dtype value, std::int64_t elements,
                            const NvmeOptions& options) {
  return swap_bytes(rule, value, std::vector{elements}, options);
}

struct SubGroup {
  std::size_t owned = 0;        // which range it is of
  Range range;                  // in that range
  std::int64_t in_staging = 0;  // where it begins there
};

class NvmeOptimizer final : public OwnedOptimizer {
 public:
  // At least one range, all on one device; host: a device that the host can read, which may be the
  // values' own; its memory is taken when this is made, and beside the thread here it may be used
  // as long as it is not given another number of threads meanwhile. Throws std::invalid_argument
  // naming the option, machine::MachineError what SwapFile says.
  NvmeOptimizer(const Rule& rule, std::vector<OwnedRange> owned, machine::Device& host,
                const NvmeOptions& options);
  NvmeOptimizer(const Rule& rule, const machine::Tensor& values,
                const std::vector<std::uint8_t>& decay_mask, const NvmeOptions& options)
      : NvmeOptimizer(rule, one_range(values, decay_mask), values.device(), options) {}

  // Gradients may be changed once it returns. After an error nothing is known of the states: it
  // goes up, and every later call throws std::logic_error.
  void update(const std::vector<machine::Tensor>& gradients, double gradient_scale) override;
  void update(const machine::Tensor& gradient, double gradient_scale) {
    update(std::vector{gradient}, gradient_scale);
  }
  void values_changed() override;
  void visit(bool writes, const Visit& call) override;  // a sub-group at a time

  OffloadTraffic moved() const override { return moved_; }  // by updates alone
  std::string note() const override { return swap_ ? swap_->note() : ""; }
  IoCounts counts() const { return swap_ ? swap_->counts() : IoCounts{}; }
  SwapFile* swap_file() { return swap_.get(); }  // for tests; null: there are no states

 private:
  machine::Device& device() const { return owned_.front().device(); }
  std::int64_t groups() const { return std::ssize(groups_); }
  const SubGroup& group(std::int64_t index) const {
    return groups_[static_cast<std::size_t>(index)];
  }
  bool at_home(std::int64_t index) const { return owned_[group(index).owned].home; }
  RangeStates views(std::int64_t index) const;
  machine::Tensor transferred(std::int64_t index) const;
  machine::Tensor staged(const machine::Tensor& staging, std::int64_t index) const;
  void set_mask(const SubGroup& group);
  void guarded(const std::function<void()>& work);
  // Of states, and of values that have a home elsewhere.
  struct Ways {
    bool reads = true, writes = true;
  };
  void pass(Ways states, Ways values,
            const std::function<void(std::int64_t index, const RangeStates&)>& call);
  // Those of a sub-group, in host memory until the next but one.
  machine::Tensor fetched(std::int64_t index, const machine::Tensor& values);
  Worker::Ticket go_down(const std::vector<machine::Tensor>& gradients, std::int64_t index);
  void update_group(std::int64_t step, double scale, std::int64_t index, RangeStates states);
  void go_up(std::int64_t index);
  void before(OffloadPhase phase, std::int64_t index) const {
    if (before_) before_(phase, index);
  }

  std::vector<OwnedRange> owned_;  // without their masks
  machine::Device& host_;
  const std::function<void(OffloadPhase, std::int64_t)> before_;
  machine::Tensor values_;  // of the range at hand
  KeptStates kept_;
  std::vector<SubGroup> groups_;
  std::vector<std::vector<Range>> decayed_;  // by range: where the mask is not zero
  machine::Memory mask_;
  Decay decay_ = Decay::everywhere;  // of the sub-group at hand
  std::vector<machine::Tensor> buffers_;
  machine::Tensor staged_gradients_, staged_values_;  // of two sub-groups
  std::unique_ptr<SwapFile> swap_;
  OffloadTraffic moved_;  // each way of the device is counted by the thread that copies
  bool broken_ = false;
  std::unique_ptr<machine::Stream> copy_stream_;
  Worker copies_{true, {"copies", machine::Part::offload, ""}};  // last: ends before what it uses
};

}  // namespace zero

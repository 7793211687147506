#pragma once
// An optimizer whose states are not on the values' device: in host memory (ZeRO-Offload: Ren et al.
// 2021, arXiv:2101.06840) or in a file (ZeRO-Infinity: Rajbhandari et al. 2021, arXiv:2104.07857).
// Its values get the same bits as an Optimizer's.
//
//   StreamedOptimizer optimizer(rule, values, decay_mask, host,
//                               {.device = OffloadDevice::cpu, .cpu = {.piece_size = 1 << 20}});
//   optimizer.update(gradient, scale);
//
// Ranges are updated piece by piece; no piece spans two ranges. A piece's gradients go down to the
// host and its values come up through two staging slots: while one piece is updated, the next goes
// down and the last comes up. A slot is reused after its gradients are read and its values are
// copied up. The host's pass over 16-bit values moves 30 bytes an element (optimizer.h). A
// StateStore keeps the states. The device may be the host itself, or one that the host cannot read.
//
// Values that are narrower than their master come up from the staging. Values that are their own
// master come up from the store's master. If the store has no master, they go down with the
// gradients and are updated in the staging. Values that have a home elsewhere (ValueHome) are
// updated there and do not move.
//
// With states in host memory each direction has its own thread and stream. With a file, one thread
// copies both directions in turn; the file moves four times as many bytes for Adam over bfloat16.
// Values come down into a slot after the values that were updated there went up.
//
// Partial offload: the first elements of each range stay with an Optimizer on the device, and the
// last `ratio` of the elements are streamed (Twin-Flow of DeepSpeed's ZeRO-Offload++).
//
// Delayed parameter update (of ZeRO-Offload): an update writes the values of the previous update,
// takes its own gradients down and returns while the host works on them. So the first update
// changes no values, and the values of step i + 1 contain gradients up to step i - 1. Each gradient
// has the learning rate and the scale of its own update. Elements that stay on the device are
// updated at once. drain() writes the pending values.
//
// An update of h streamed elements moves h times the size of the gradient's dtype down, and h times
// the size of the values' dtype up. With gradients in the values' 16 bits this is ZeRO-Offload's 4
// bytes per element.
//
// The constructor allocates all memory. The threads do not allocate memory. Staging is memory of
// the host device, pinned if that memory is pinned. CUDA copies other memory in parts. The host
// device should use one thread less than there are cores, because OpenMP's threads spin while they
// wait and keep the copies off a core.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "machine/world/worker.h"
#include "zero/offload/owned_optimizer.h"
#include "zero/offload/state_store.h"

namespace zero {

class StreamedOptimizer final : public OwnedOptimizer {
 public:
  // Requires at least one range, and all ranges on one device. Values that have a home do not
  // support a ratio below 1 or delayed_update. host: a device that the host can read, possibly the
  // values' device. Other code may use it at the same time, but its number of threads must not
  // change. gradient_dtype: the dtype of the gradients of update. It is the optimizer's dtype (the
  // default), or the values' dtype. Throws std::invalid_argument that names
  // the option, and the exceptions of SwapFile.
  StreamedOptimizer(const Rule& rule, std::vector<OwnedRange> owned, machine::Device& host,
                    const StateOptions& options, std::optional<Dtype> gradient_dtype = {});
  StreamedOptimizer(const Rule& rule, Tensor values, const std::vector<std::uint8_t>& decay_mask,
                    machine::Device& host, const StateOptions& options,
                    std::optional<Dtype> gradient_dtype = {})
      : StreamedOptimizer(rule, one_range(std::move(values), decay_mask), host, options,
                          gradient_dtype) {}
  StreamedOptimizer(const StreamedOptimizer&) = delete;
  StreamedOptimizer& operator=(const StreamedOptimizer&) = delete;

  // Gradients may change after update returns. The call that waits for a thread throws its
  // exception (if delayed, the next call). After an error the states are undefined, and every later
  // call throws std::logic_error.
  void update(const std::vector<Tensor>& gradients, double gradient_scale,
              const Updated& updated) override;
  using OwnedOptimizer::update;
  void update(const Tensor& gradient, double gradient_scale) {
    update(std::vector{gradient}, gradient_scale);
  }
  void drain() override;
  // Throw std::logic_error while an update is pending; drain first.
  void values_changed() override;
  void visit(bool writes, const Visit& call) override;  // piece by piece
  void set_steps(std::int64_t steps) override;

  Range host_range(std::size_t owned = 0) const;  // the streamed part of a range
  // Returns null if all of the range is streamed.
  const Optimizer* on_device(std::size_t owned = 0) const { return on_device_[owned].get(); }
  OffloadTraffic moved() const override { return moved_; }  // by updates
  std::string note() const override { return store_->note(); }
  StateStore& store() { return *store_; }  // for tests

 private:
  // Copies in the order in which they are submitted.
  struct Lane {
    Lane(machine::Device& device, const char* name)
        : stream(device.make_stream()), worker(true, {name, machine::Part::offload, ""}) {}
    std::unique_ptr<machine::Stream> stream;
    machine::Worker worker;  // last member: ends before the stream is destroyed
  };
  void guarded(const std::function<void()>& work);
  void check_not_pending() const;
  void wait_for_device();
  void update_on_device(std::size_t owned, const Tensor& gradient, double scale);
  void update_overlapped(const std::vector<Tensor>& gradients, std::int64_t step, double scale);
  void start_delayed(const std::vector<Tensor>& gradients, std::int64_t step, double scale);
  void apply_pending();
  // Runs a pass of the store. Values that have a home are open during their pieces.
  void pass(StateStore::Access states, StateStore::Access values, const StateStore::Use& use);
  void take_values(StateStore::Access states, const StateStore::Use& then);
  void set_master(std::int64_t index, const PieceStates& states);

  machine::Device& device() const { return owned_.front().device(); }
  const OwnedRange& range_of(std::int64_t index) const {
    return owned_[plan_.pieces.at(index).owned];
  }
  bool at_home(std::int64_t index) const { return range_of(index).home != nullptr; }
  // Wide values go up from the store's master itself, which is not written before the next update.
  bool masters_go_up() const { return plan_.wide_values && !plan_.takes_values_down(); }
  Tensor staged(const Tensor& staging, std::int64_t index) const;
  Tensor values(std::int64_t index) const;  // of a piece, on the device or at home
  // Returns the values of a piece in the memory in which the host updates them.
  Tensor host_values(std::int64_t index, const PieceStates& states) const;
  // The phases of a piece, in order.
  machine::Worker::Ticket go_down(const std::vector<Tensor>& gradients, std::int64_t index);
  void update_piece(const Rule& rule, std::int64_t step, double scale, std::int64_t index,
                    const PieceStates& states);
  machine::Worker::Ticket go_up(std::int64_t index, const PieceStates& states);
  void before(OffloadPhase phase, std::int64_t index) const {
    if (options_.before) options_.before(phase, index);
  }

  std::vector<OwnedRange> owned_;  // without their masks
  machine::Device& host_;
  const StateOptions options_;
  const StreamPlan plan_;
  std::vector<std::unique_ptr<Optimizer>> on_device_;  // by range
  Tensor staged_gradients_, staged_values_;            // of two pieces; if delayed, of all
  Tensor home_values_;                                 // of the current range
  std::unique_ptr<StateStore> store_;
  bool pending_ = false, broken_ = false;
  OffloadTraffic moved_;             // each direction is counted by its own thread
  std::shared_ptr<Lane> down_, up_;  // one lane if states are in a file
  machine::Worker worker_;           // last: the threads end before other members are destroyed
};

}  // namespace zero

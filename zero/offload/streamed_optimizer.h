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
// down and the last comes up. A slot is used again when its gradients were read and its values are
// up. The host's pass over 16-bit values moves 30 bytes an element (optimizer.h). A
// StateStore keeps the states. The device may be the host itself, or one that the host cannot read.
//
// Values that are narrower than their master come up from the staging; values that are their own
// master come up from the store's master, or, if the store has none, go down with the gradients and
// are updated in the staging. Values that have a home elsewhere (ValueHome) are updated there and
// do not move.
//
// With states in host memory each way has a thread and a stream of its own. With a file, which
// moves four times as much for Adam over bfloat16, one thread copies both ways in turn: values come
// down into a slot after those that were updated there went up.
//
// Partial offload: the first elements of each range stay with an Optimizer on the device, the last
// `ratio` of them are streamed (Twin-Flow of DeepSpeed's ZeRO-Offload++).
//
// Delayed parameter update (of ZeRO-Offload): an update writes the values of the previous update,
// takes its own gradients down and returns while the host works on them. So the first changes
// nothing, and the values of step i + 1 contain gradients up to step i - 1, each with the learning
// rate and the scale of its own update. Elements that stay on the device are updated at once.
// drain() writes the pending values.
//
// Bytes of an update, of h streamed elements: h times the size of the gradient's dtype down and of
// the values' up. With gradients in the values' 16 bits that is ZeRO-Offload's 4 bytes.
//
// The constructor allocates all memory, the threads none. Staging is the host device's memory,
// pinned if that is; CUDA copies other memory in parts. The host's device should use one thread
// less than there are cores: OpenMP's threads spin while they wait, and keep the copies off a core.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "zero/offload/owned_optimizer.h"
#include "zero/offload/state_store.h"
#include "zero/offload/worker.h"

namespace zero {

class StreamedOptimizer final : public OwnedOptimizer {
 public:
  // At least one range, all on one device; values that have a home do not support a ratio below 1
  // or delayed_update. host: a device that the host can read, which may be the values' own. It may
  // be used elsewhere meanwhile, but its number of threads must not change. gradient_dtype: of the
  // gradients of update: the optimizer's dtype (the default), or the values' own, which is widened
  // on the host. Throws std::invalid_argument that names the option, and what SwapFile throws.
  StreamedOptimizer(const Rule& rule, std::vector<OwnedRange> owned, machine::Device& host,
                    const StateOptions& options, std::optional<Dtype> gradient_dtype = {});
  StreamedOptimizer(const Rule& rule, Tensor values, const std::vector<std::uint8_t>& decay_mask,
                    machine::Device& host, const StateOptions& options,
                    std::optional<Dtype> gradient_dtype = {})
      : StreamedOptimizer(rule, one_range(std::move(values), decay_mask), host, options,
                          gradient_dtype) {}
  StreamedOptimizer(const StreamedOptimizer&) = delete;
  StreamedOptimizer& operator=(const StreamedOptimizer&) = delete;

  // Gradients may change after it returns. The call that waits for a thread throws its exception
  // (delayed: the next call). After an error the states are undefined, and every later call throws
  // std::logic_error.
  void update(const std::vector<Tensor>& gradients, double gradient_scale,
              const Updated& updated) override;
  using OwnedOptimizer::update;
  void update(const Tensor& gradient, double gradient_scale) {
    update(std::vector{gradient}, gradient_scale);
  }
  void drain() override;
  // Throw std::logic_error while an update is pending: drain first.
  void values_changed() override;
  void visit(bool writes, const Visit& call) override;  // piece by piece
  void set_steps(std::int64_t steps) override;

  Range host_range(std::size_t owned = 0) const;  // the streamed part of a range
  // Null if all of the range is streamed.
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
    Worker worker;  // last: ends before what it uses
  };
  void guarded(const std::function<void()>& work);
  void check_not_pending() const;
  void wait_for_device();
  void update_on_device(std::size_t owned, Tensor gradient, double scale);
  void update_overlapped(const std::vector<Tensor>& gradients, std::int64_t step, double scale);
  void start_delayed(const std::vector<Tensor>& gradients, std::int64_t step, double scale);
  void apply_pending();
  // A pass of the store, with values that have a home opened during their pieces.
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
  // The same in the memory in which the host updates them.
  Tensor host_values(std::int64_t index, const PieceStates& states) const;
  // The phases of a piece, in order.
  Worker::Ticket go_down(const std::vector<Tensor>& gradients, std::int64_t index);
  void update_piece(const Rule& rule, std::int64_t step, double scale, std::int64_t index,
                    const PieceStates& states);
  Worker::Ticket go_up(std::int64_t index, const PieceStates& states);
  void before(OffloadPhase phase, std::int64_t index) const {
    if (options_.before) options_.before(phase, index);
  }

  std::vector<OwnedRange> owned_;  // without their masks
  machine::Device& host_;
  const StateOptions options_;
  const StreamPlan plan_;
  std::vector<std::unique_ptr<Optimizer>> on_device_;  // by range
  Tensor wide_on_device_;                              // gradients, if narrow ones come
  Tensor staged_gradients_, staged_values_;            // of two pieces, or of all
  Tensor wide_gradients_;                              // of one piece
  Tensor home_values_;                                 // of the current range
  std::unique_ptr<StateStore> store_;
  bool pending_ = false, broken_ = false;
  OffloadTraffic moved_;             // each way is counted by its own thread
  std::shared_ptr<Lane> down_, up_;  // the same if values go down into slots that come up
  Worker worker_;                    // last: these end before what they use
};

}  // namespace zero

#pragma once
// An optimizer whose states live in host memory while the values stay on their device: ZeRO-Offload
// (Ren et al. 2021, arXiv:2101.06840). Its values get the same bits as an Optimizer's.
//
//   OffloadOptimizer optimizer(rule, values, decay_mask, host, {.piece_size = 1 << 20});
//   optimizer.update(gradient, scale);
//
// Gradients go down and values come up in pieces, each way on a stream and a thread of its own,
// through two staging buffers: while a piece is updated, the next goes down and the last comes up.
// A piece's buffers are used again when its gradients have been read and its values are up. The
// host's pass over 16-bit values moves 30 bytes an element (optimizer.h). The device may be the
// host itself: the same path between two memories. Pieces end where a range does; the staging is
// that of all ranges.
//
// Partial offload: the first elements of each range stay with an Optimizer on the device, the last
// `ratio` of them are the host's (Twin-Flow of DeepSpeed's ZeRO-Offload++).
//
// Delayed parameter update (of the same paper): an update writes the values that the gradients of
// the one before led to, takes its own gradients down and returns while the host works on them. So
// the first changes nothing, and the values of step i + 1 have seen gradients up to step i - 1,
// each with the learning rate and the scale of the update that brought it. What stays on the device
// is updated at once. drain() writes what is pending.
//
// Bytes of an update, h elements being the host's: h times the size of the gradient's dtype down
// and of the values' up. With gradients in the values' 16 bits that is the paper's 4 bytes.
//
// Memory is taken when this is made, and never by the threads. Staging is the host device's memory,
// pinned if that is; memory that is not works too, CUDA then copies it in parts. The host's
// device should have a thread less than there are cores: OpenMP's threads spin while they wait, and
// keep the copies off a core.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "zero/offload/owned_optimizer.h"
#include "zero/offload/worker.h"

namespace zero {

struct OffloadOptions {
  std::int64_t piece_size = std::int64_t{1} << 20;  // elements
  double ratio = 1;  // of the elements, what is updated on the host (DeepSpeed's name)
  bool delayed_update = false;
  std::int64_t warmup_steps = 0;  // so many updates are not delayed (the paper: 40)
  // Of the gradients that update is given: the optimizer's dtype (none: that), or the values' own,
  // which is widened on the host.
  std::optional<machine::Dtype> gradient_dtype = {};
  // For tests: called before each phase of a piece, by the thread that does it.
  std::function<void(OffloadPhase, std::int64_t piece)> before = {};
};

// Bytes held from construction on, by device and category, and moved by one update.
struct OffloadCost {
  std::int64_t host_elements = 0, pieces = 0;
  std::size_t host_optimizer = 0;  // master and moments
  std::size_t host_buffers = 0;    // staging and mask
  std::size_t device_optimizer = 0, device_buffers = 0;
  std::size_t down = 0, up = 0;
};
// Of ranges of these sizes; away: those whose values have a home elsewhere and do not come up.
// Throws std::invalid_argument naming the option that is out of range.
OffloadCost offload_cost(const Rule& rule, machine::Dtype value,
                         const std::vector<std::int64_t>& sizes, const OffloadOptions& options,
                         const std::vector<bool>& away = {});
inline OffloadCost offload_cost(const Rule& rule, machine::Dtype value, std::int64_t elements,
                                const OffloadOptions& options) {
  return offload_cost(rule, value, std::vector{elements}, options);
}

// What goes down, is updated and comes up at once.
struct OffloadPiece {
  std::size_t owned = 0;        // which range it is of
  Range range;                  // in that range
  std::int64_t in_states = 0;   // where it begins in the host's states,
  std::int64_t in_staging = 0;  // and in the staging
};

class OffloadOptimizer final : public OwnedOptimizer {
 public:
  // At least one range, all on one device; those whose values have a home go with neither ratio nor
  // delayed_update. host: a device that the host can read, which may be the values' own; beside the
  // threads here it may be used as long as it is not given another number of threads meanwhile.
  OffloadOptimizer(const Rule& rule, std::vector<OwnedRange> owned, machine::Device& host,
                   OffloadOptions options = {});
  OffloadOptimizer(const Rule& rule, machine::Tensor values,
                   const std::vector<std::uint8_t>& decay_mask, machine::Device& host,
                   OffloadOptions options = {})
      : OffloadOptimizer(rule, one_range(std::move(values), decay_mask), host, std::move(options)) {
  }
  OffloadOptimizer(const OffloadOptimizer&) = delete;
  OffloadOptimizer& operator=(const OffloadOptimizer&) = delete;

  // Gradients may be changed once it returns. What a thread throws comes out of the call that waits
  // for it (delayed: the next one); after an error nothing is known of the states, and every later
  // call throws std::logic_error.
  void update(const std::vector<machine::Tensor>& gradients, double gradient_scale) override;
  void update(const machine::Tensor& gradient, double gradient_scale) {
    update(std::vector{gradient}, gradient_scale);
  }
  // Does nothing where none is pending.
  void drain() override;
  // Throws std::logic_error while an update is pending: drain first.
  void values_changed() override;
  void set_steps(std::int64_t steps) override;
  void visit(bool writes, const Visit& call) override;

  // The host's part of a range, and its states there, master among them whatever the dtype;
  // values: of the device. Throws std::logic_error while an update is pending.
  Range host_range(std::size_t owned = 0) const;
  RangeStates states(std::size_t owned = 0) const;
  // Null where the ratio leaves it nothing.
  const Optimizer* on_device(std::size_t owned = 0) const { return on_device_[owned].get(); }

  using Moved = OffloadTraffic;
  Moved moved() const override { return moved_; }  // of a pending update, down alone

 private:
  void guarded(const std::function<void()>& work);
  void wait_for_device();
  void update_on_device(std::size_t owned, machine::Tensor gradient, double scale);
  void update_overlapped(const std::vector<machine::Tensor>& gradients, double scale);
  void start_delayed(const std::vector<machine::Tensor>& gradients, double scale);
  void apply_pending();

  machine::Device& device() const { return owned_.front().device(); }
  const OwnedRange& range_of(std::int64_t index) const { return owned_[piece(index).owned]; }
  std::int64_t pieces() const { return std::ssize(pieces_); }
  const OffloadPiece& piece(std::int64_t index) const {
    return pieces_[static_cast<std::size_t>(index)];
  }
  machine::Tensor staged(const machine::Tensor& staging, std::int64_t index) const;
  machine::Tensor state(const machine::Tensor& whole, std::int64_t index) const;
  machine::Tensor host_values(std::int64_t index) const;    // of a piece, on the host
  machine::Tensor device_values(std::int64_t index) const;  // the same on the device
  // Each of a piece, in the order of its life.
  Worker::Ticket go_down(const std::vector<machine::Tensor>& gradients, std::int64_t index);
  void update_piece(const Rule& rule, std::int64_t step, double scale, std::int64_t index);
  void update_at_home(double scale, std::int64_t index);  // in place of going up
  Worker::Ticket go_up(std::int64_t index);
  void before(OffloadPhase phase, std::int64_t index) const {
    if (options_.before) options_.before(phase, index);
  }

  std::vector<OwnedRange> owned_;  // without their masks
  machine::Device& host_;
  const OffloadOptions options_;
  const KeptStates kept_;
  std::vector<OffloadPiece> pieces_;
  std::vector<std::int64_t> first_state_;                  // of each range
  std::vector<std::unique_ptr<Optimizer>> on_device_;      // by range
  machine::Tensor wide_on_device_;                         // its gradients, where narrow ones come
  machine::Tensor master_, first_moment_, second_moment_;  // [host_elements]
  machine::Tensor staged_gradients_, staged_values_;       // of two pieces, or of all
  machine::Tensor wide_gradients_;                         // of one piece
  machine::Tensor home_values_;                            // of the range at hand, at its home
  machine::Memory decay_mask_;
  Decay decay_ = Decay::everywhere;
  bool pending_ = false, broken_ = false;
  Moved moved_;  // each way is counted by its own thread
  std::unique_ptr<machine::Stream> down_stream_, up_stream_;
  Worker down_{true, {"copies down", machine::Part::offload, ""}},
      up_{true, {"copies up", machine::Part::offload, ""}};
  Worker worker_;  // last: these end before what they use
};

}  // namespace zero

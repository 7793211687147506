#pragma once
// Which steps in half overflow, as their numbers in double have it: the same step in double on a
// RangeDevice notes how large the numbers get that half would store, and must_overflow holds them
// against half's end at a loss scale. Nothing of what a step in half itself found enters.

#include <memory>
#include <optional>

#include "machine/device/kernels.h"

namespace suite {

// How large numbers got. stored: one that a step stores however it is cut. partial: none that it
// stores is larger, nor any sum of some of a product's terms, as a rank of tp has it.
struct Magnitude {
  double stored = 0, partial = 0;
};
struct StepMagnitudes {
  Magnitude forward;
  Magnitude backward;  // to be multiplied by the loss scale
};

// Whether a step whose loss is multiplied by `scale` overflows in half, where rounding moves
// numbers by no more than `relative`; none: either is right.
std::optional<bool> must_overflow(const StepMagnitudes& step, double scale, double relative);

// A host device for steps in double, without recomputation or blockwise attention. A micro-batch is
// backward from its loss to its embedding.
class RangeDevice final : public machine::Device {
 public:
  explicit RangeDevice(int threads);
  ~RangeDevice() override;
  // Gradients of parameters, which are float beside half: what is written there does not count.
  void leave_out(const machine::Tensor& gradient);
  StepMagnitudes take();  // since the last time

  std::string description() const override { return inner_->description(); }
  std::unique_ptr<machine::Stream> make_stream() override;

 private:
  class Watch;
  class Stream;
  void* do_allocate(std::size_t bytes) override;
  void do_free(void* data, std::size_t bytes) override;

  std::unique_ptr<machine::Device> inner_;
  Watch* watch_ = nullptr;  // of stream()
};

}  // namespace suite

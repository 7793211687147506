#pragma once
// Determines the steps in half that overflow, from the same step in double. A RangeDevice records
// the largest numbers that half would store, and must_overflow compares them with half's range at a
// loss scale. Uses no result of the step in half.

#include <memory>
#include <optional>

#include "machine/device/kernels.h"

namespace suite {

// Largest magnitudes. stored: the largest number that a step stores at all degrees. partial: an
// upper bound of all stored numbers and of partial sums of products, as tp ranks have them.
struct Magnitude {
  double stored = 0, partial = 0;
};
struct StepMagnitudes {
  Magnitude forward;
  Magnitude backward;  // to be multiplied by the loss scale
};

// Returns whether a step whose loss is multiplied by `scale` overflows in half, if rounding changes
// numbers by at most `relative`. Empty: both outcomes are right.
std::optional<bool> must_overflow(const StepMagnitudes& step, double scale, double relative);

// A host device for steps in double, without recomputation or blockwise attention. Backward begins
// at a micro-batch's loss and ends at its embedding.
class RangeDevice final : public machine::Device {
 public:
  explicit RangeDevice(int threads);
  ~RangeDevice() override;
  // The gradient of a parameter is float when the model is half, and is not recorded. It may be
  // added up or sent in half. Then its sum over the step counts, and as an upper bound of the sums
  // of some micro-batches and ranks, the largest sum of magnitudes. parts: only sums of some
  // micro-batches are in half, so the sum over the step does not count.
  enum class InHalf : unsigned char { nothing, parts, sum };
  void watch_gradient(const machine::Tensor& gradient, InHalf in_half);
  StepMagnitudes take();  // returns the magnitudes since the last call

  std::string description() const override { return inner_->description(); }
  std::unique_ptr<machine::Stream> make_stream() override;

 private:
  class Watch;
  class Stream;
  void* do_allocate(std::size_t bytes) override;
  void do_free(void* data, std::size_t bytes) override;

  std::unique_ptr<machine::Device> inner_;
  Watch* watch_ = nullptr;  // the kernels of stream()
};

}  // namespace suite

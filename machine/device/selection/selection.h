#pragma once
// Moves the elements of large magnitude out of a float tensor, for codes that send only these.
//
//   const auto selection = machine::make_selection(device, count, Choice::largest, category);
//   selection->choose_largest(values, k);
//   selection->take(values, indices, taken);  // these elements of values are zero now
//   selection->add(indices, taken, sum);
//
// The order of magnitudes is that of their bits: infinity is above all numbers, and NaN above
// infinity, so a comparison never loses a NaN. Lists are equal in each run. Their first elements
// are above the bound, then follow those of the bound's magnitude; both parts ascend.
//
// Tensors are on the device, of at most 2^31 - 1 elements. Work is queued on the device's stream.
// Throws std::logic_error for sizes or dtypes that do not match.

#include <cstdint>
#include <memory>
#include <utility>

#include "machine/device/tensor.h"

namespace machine {

enum class Choice : unsigned char { largest, above };  // choose_largest, or the other two

class Selection {
 public:
  // chosen() if a value is not finite, which no bound describes.
  static constexpr std::int32_t not_finite = -1;

  virtual ~Selection() = default;

  // Chooses the k elements of largest magnitude, 1 <= k <= count; of equal magnitudes, the first.
  virtual void choose_largest(const Tensor& values, std::int64_t k) = 0;
  // Chooses the elements of at least this magnitude; finite, above 0.
  virtual void choose_at_least(const Tensor& values, float least) = 0;
  // Chooses the elements whose magnitude reaches a multiple of the root of the mean square, rounded
  // to float. None if that is zero, and not_finite if it is infinite.
  virtual void choose_deviations(const Tensor& values, double deviations) = 0;
  // The number of chosen elements, int32 [1].
  const Tensor& chosen() const { return chosen_; }

  // indices[j] = i, taken[j] = the bits of values[i], values[i] = 0 of each chosen element i. Lists
  // are uint32, at least chosen() long. Takes nothing if chosen() is not_finite.
  virtual void take(const Tensor& values, const Tensor& indices, const Tensor& taken) = 0;
  // words[j] = 2 i, plus 1 if values[i] is negative, whose magnitude becomes smaller by `step`.
  virtual void take_signs(const Tensor& values, float step, const Tensor& words) = 0;
  // Replaces the values that are not finite by zero.
  virtual void drop_not_finite(const Tensor& values) = 0;

  // out[indices[j]] += the float taken[j]. Indices differ.
  virtual void add(const Tensor& indices, const Tensor& taken, const Tensor& out) = 0;
  // Adds the step with each word's sign.
  virtual void add_signs(const Tensor& words, float step, const Tensor& out) = 0;

 protected:
  explicit Selection(Tensor chosen) : chosen_(std::move(chosen)) {}

 private:
  Tensor chosen_;
};

namespace cuda {
std::unique_ptr<Selection> make_selection(Device& device, std::int64_t count, Choice choice,
                                          Category category);
}
// Of tensors of `count` elements. category: of its memory. The device outlives it.
std::unique_ptr<Selection> make_selection(Device& device, std::int64_t count, Choice choice,
                                          Category category);

}  // namespace machine

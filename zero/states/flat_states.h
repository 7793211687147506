#pragma once
// All parameters of a rank in one flat value buffer and one flat gradient buffer. So a step is a
// few long operations, and ZeRO's shards are equal ranges for parameters of any size (layout.h).

#include <cstdint>
#include <map>
#include <vector>

#include "collectives/placement.h"
#include "machine/device/tensor.h"
#include "zero/states/gradient_plan.h"
#include "zero/states/layout.h"

namespace zero {

// Owns the two buffers and makes every parameter's value and gradient a view of them; a frozen one
// has no gradient. An existing value is copied in (its own memory is freed with its last view;
// until then both are held, so reset the ledger's peaks afterwards). Other values and all gradients
// start at zero. Categories: parameters and gradients, elements times the size of the plan's
// dtypes.
//
// A step of stage 2 frees the gradient buffer. A step of stage 3 also frees the value buffer. After
// that, the existing values and gradients are views of the step's own memory.
class FlatStates {
 public:
  // The parameters are those of the plan, in its order, and outlive this. Throws
  // std::invalid_argument that names a parameter whose value has another dtype or shape.
  FlatStates(machine::Device& device, const GradientPlan& plan,
             const std::vector<Parameter*>& parameters, const LayoutOptions& options = {});

  const Layout& layout() const { return layout_; }
  machine::Device& device() const { return device_; }
  const Tensor& values() const { return values_; }        // [value_elements]
  const Tensor& gradients() const { return gradients_; }  // [elements]
  Tensor values(Range range) const { return values_.slice(range.begin, {range.size()}); }
  Tensor gradients(Range range) const { return gradients_.slice(range.begin, {range.size()}); }
  // Returns one byte per element: 1 if weight decay applies, otherwise 0.
  std::vector<std::uint8_t> decay_mask(const GradientPlan& plan, Range range) const;

  // Makes all gradients zero, or stale if the layer writes the first sum of a step: then they are
  // neither written here nor read by the first product.
  void clear_gradients();
  // Makes the stale gradients of a bucket zero: of layers that have not run.
  void clear_stale_gradients(const Bucket& bucket);

  void release_values() { release(values_, &Parameter::value); }
  void release_gradients() { release(gradients_, &Parameter::gradient); }
  // Makes the bucket's parameters views of `whole` [bucket's elements], or empty if `whole` is
  // empty.
  void view_values(const Bucket& bucket, const Tensor& whole) {
    view(bucket, whole, &Parameter::value);
  }
  void view_gradients(const Bucket& bucket, const Tensor& whole) {
    view(bucket, whole, &Parameter::gradient);
  }
  Parameter& parameter(int row) const { return *parameters_[static_cast<std::size_t>(row)]; }
  machine::Shape shape(int row) const { return shapes_[static_cast<std::size_t>(row)]; }
  // Returns the row in the plan. Throws std::logic_error that names a parameter that is not in the
  // plan.
  int row(const Parameter* parameter) const;

 private:
  void find_cleared();
  void release(Tensor& buffer, Tensor Parameter::*what);
  void view(const Bucket& bucket, const Tensor& whole, Tensor Parameter::*what);

  machine::Device& device_;
  Layout layout_;
  std::vector<Parameter*> parameters_;
  std::vector<machine::Shape> shapes_;
  std::map<const Parameter*, int> rows_;
  std::vector<Range> cleared_;    // the parts of the gradients that clear_gradients() fills
  std::vector<Parameter*> left_;  // the parameters between them
  Tensor values_, gradients_;
};

}  // namespace zero

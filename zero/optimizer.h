#pragma once
// What an update does to a flat range of elements: AdamW (Loshchilov and Hutter 2019,
// arXiv:1711.05101) or plain SGD (no momentum, no decay: nothing that could hide a wrong factor in
// a gradient).
//
// States are kept in the gradient's dtype: float, or double under double. Only values that are
// narrower (bfloat16, half) have a master copy; float and double values are their own master and
// are updated in place. So an element costs, in bytes:
//              float   bfloat16, half   double
//   AdamW        8           12           16      (two moments, and the master)
//   SGD          0            4            0
// The decay mask of AdamW, one byte an element, is a buffer and counted apart.

#include <cstdint>
#include <variant>
#include <vector>

#include "machine/device/kernels.h"
#include "machine/device/memory.h"
#include "machine/device/tensor.h"

namespace zero {

using AdamW = machine::AdamW;
struct Sgd {
  double learning_rate = 1e-2;
};
using Rule = std::variant<AdamW, Sgd>;

std::size_t optimizer_bytes_per_element(const Rule& rule, machine::Dtype value);
std::size_t mask_bytes_per_element(const Rule& rule);

class Optimizer {
 public:
  // values [elements]: the range that this optimizer updates; one byte of decay_mask for each
  // element.
  Optimizer(Rule rule, machine::Tensor values, const std::vector<std::uint8_t>& decay_mask);

  // One step: gradient [elements], in the gradient's dtype, is multiplied by gradient_scale first.
  void update(const machine::Tensor& gradient, double gradient_scale);
  // The values were set from outside (loaded, initialized): the master copy follows them.
  void values_changed();

  Rule& rule() { return rule_; }  // a learning-rate schedule writes here
  std::int64_t steps() const { return steps_; }
  const machine::Tensor& master() const {
    return master_;
  }  // the values themselves if none is kept
  const machine::Tensor& first_moment() const { return first_moment_; }    // empty for SGD
  const machine::Tensor& second_moment() const { return second_moment_; }  // empty for SGD

 private:
  Rule rule_;
  machine::Tensor values_, master_, first_moment_, second_moment_;
  machine::Memory decay_mask_;
  std::int64_t steps_ = 0;
};

}  // namespace zero

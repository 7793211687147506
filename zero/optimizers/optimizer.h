#pragma once
// Updates of a flat range of elements: plain SGD (no momentum, no decay, so that it cannot hide a
// wrong factor in a gradient), SGD with momentum, RMSProp, Adam and AdamW (machine/device/kernels.h
// has the formulas and the papers), each in one pass over memory.
//
// States are kept in the gradient's dtype: float, or double under double. Only values that are
// narrower (bfloat16, half) have a master copy; float and double values are their own master and
// are updated in place. In units of 32-bit weights, the weights themselves among them, as ZeRO's
// paper counts Adam's 12 bytes (Rajbhandari et al. 2020, arXiv:1910.02054, section 3.1), and in
// bytes in addition to the values:
//               units   float   bfloat16, half   double
//   SGD           1       0            4            0      (the master)
//   Momentum      2       4            8            8      (and the velocity)
//   RMSProp       2       4            8            8      (and the second moment)
//   Adam, AdamW   3       8           12           16      (and both moments)
// In units of 16-bit weights that is twice as many: 2, 4, 4 and 6. The decay mask of all rules but
// plain SGD, one byte for each element, is a buffer and counted separately.
//
// Bytes that a step moves, of AdamW over 16-bit values: reads gradient, master and moments (16) and
// writes master, moments and values (14); a byte more where the mask differs from element to
// element. Values that live on another device are updated through a copy of them on the host: an
// Optimizer over that copy is ZeRO-Offload's (Ren et al. 2021, arXiv:2101.06840).

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "machine/device/kernels.h"
#include "machine/device/memory.h"
#include "machine/device/tensor.h"

namespace zero {

using machine::Category, machine::Dtype, machine::Tensor;

struct Sgd {
  double learning_rate = 1e-2;
};
using Momentum = machine::Momentum;
using RmsProp = machine::RmsProp;
using Adam = machine::Adam;
using AdamW = machine::AdamW;
using Rule = std::variant<AdamW, Sgd, Momentum, RmsProp, Adam>;

// "sgd", "momentum", "rmsprop", "adam", "adamw": of a rule with its usual options.
std::string_view name(const Rule& rule);
std::vector<std::string> rule_names();
Rule find_rule(std::string_view name);  // throws std::invalid_argument naming the nearest

// The states kept in addition to values of a dtype; the mask is a buffer.
struct KeptStates {
  bool master = false, first_moment = false, second_moment = false, mask = true;
  int count() const { return int{master} + int{first_moment} + int{second_moment}; }
};
KeptStates kept_states(const Rule& rule, Dtype value);
std::size_t optimizer_bytes_per_element(const Rule& rule, Dtype value);
std::size_t mask_bytes_per_element(const Rule& rule);

// The states of one range during an update. All [elements]; master: the values themselves if none
// is kept; a moment that the rule does not have is empty.
struct RangeStates {
  Tensor values, master, first_moment, second_moment;
};
enum class Decay : unsigned char { everywhere, masked, nowhere };
// Summarizes the mask: one that is the same everywhere need not be read.
Decay decay_of(const std::vector<std::uint8_t>& decay_mask);
// The update that is number `step`, from 1. An element's bits do not depend on the range's ends.
void update_range(const Rule& rule, std::int64_t step, const Tensor& gradient,
                  double gradient_scale, Decay decay, const std::uint8_t* decay_mask,
                  const RangeStates& range);

class Optimizer {
 public:
  // values [elements]: the range that this optimizer updates; one byte of decay_mask for each
  // element.
  Optimizer(Rule rule, Tensor values, const std::vector<std::uint8_t>& decay_mask);

  // One step: gradient [elements], in the gradient's dtype, is multiplied by gradient_scale first.
  void update(const Tensor& gradient, double gradient_scale);
  // The values were set from outside (loaded, initialized): the master copy follows them.
  void values_changed();

  Rule& rule() { return rule_; }  // a learning-rate schedule writes here
  std::int64_t steps() const { return steps_; }
  void set_steps(std::int64_t steps) { steps_ = steps; }  // of states that were loaded
  const Tensor& master() const { return master_; }        // the values if none is kept
  // Empty if the rule has none. The first moment of Momentum is the velocity.
  const Tensor& first_moment() const { return first_moment_; }
  const Tensor& second_moment() const { return second_moment_; }

  RangeStates states() const { return {values_, master_, first_moment_, second_moment_}; }

 private:
  Rule rule_;
  Tensor values_, master_, first_moment_, second_moment_;
  machine::Memory decay_mask_;
  Decay decay_ = Decay::everywhere;
  std::int64_t steps_ = 0;
};

}  // namespace zero

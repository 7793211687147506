#pragma once
// Updates of a flat range of elements: plain SGD (no momentum, no decay, so that it cannot hide a
// wrong factor in a gradient), SGD with momentum, RMSProp, Adam, AdamW and Lion
// (machine/device/kernels.h has the formulas and the papers), each in one pass over memory.
//
// States are kept in the gradient's dtype: float, or double under double. Only values that are
// narrower (bfloat16, half) have a master copy; float and double values are their own master and
// are updated in place. The table has the size in units of 32-bit weights, including the weights,
// as ZeRO's paper counts Adam's 12 bytes (Rajbhandari et al. 2020, arXiv:1910.02054, section 3.1).
// It also has the bytes per element in addition to the values:
//               units   float   bfloat16, half   double
//   SGD           1       0            4            0      (the master)
//   Momentum      2       4            8            8      (and the velocity)
//   RMSProp       2       4            8            8      (and the second moment)
//   Lion          2       4            8            8      (and the first moment)
//   Adam, AdamW   3       8           12           16      (and both moments)
//   LAMB          3       8           12           16      (and both moments)
//   1-bit Adam    3       8           12           16      (and both moments)
//   1-bit LAMB    4      12           16           24      (and both moments and a third state,
//                                                           which KeptStates does not count)
//   Muon          2       4            8            8      (and the momentum; of other parameters
//                                                           the states of AdamW)
//   Adafactor     1       0            4            0      (and a mean for each row and column; of
//                                                           vectors the second moment)
//   8-bit AdamW  1 1/2    2            6            -      (and two scales for each block of 256;
//                                                           of small parameters the states of
//                                                           AdamW)
// In units of 16-bit weights the numbers are twice as large: 2, 4, 4, 4 and 6. The decay mask of
// rules of flat ranges except plain SGD, and of what Muon leaves to AdamW, one byte per element, is
// a buffer and is counted separately.
//
// A step of AdamW over 16-bit values reads gradient, master and moments (16 bytes per element) and
// writes master, moments and values (14 bytes). It reads one more byte if the mask differs between
// elements. Values on another device are updated through a copy on the host. An Optimizer over that
// copy is ZeRO-Offload's (Ren et al. 2021, arXiv:2101.06840).

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "machine/device/dynamic_codes/adamw_8bit.h"
#include "machine/device/kernels.h"
#include "machine/device/memory.h"
#include "machine/device/tensor.h"
#include "zero/optimizers/muon_scale.h"

namespace zero {

using machine::Category, machine::Dtype, machine::Tensor;

struct Sgd {
  double learning_rate = 1e-2;
};
using Momentum = machine::Momentum;
using RmsProp = machine::RmsProp;
using Adam = machine::Adam;
using AdamW = machine::AdamW;
using Lion = machine::Lion;
// Its update needs the norms of whole parameters (stages/lamb.h), so an Optimizer rejects it. Names
// and defaults of the ratio's limits are DeepSpeed's.
struct Lamb {
  double learning_rate = 1e-3, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0;
  double min_coeff = 0.01, max_coeff = 10;
};
// It orthogonalizes whole matrices (matrices/muon.h), so an Optimizer rejects it. AdamW with beta1,
// beta2 and epsilon updates all other parameters. Names are Megatron-LM's.
struct Muon {
  double learning_rate = 1e-3, momentum = 0.95;
  bool nesterov = false;
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0;
  int num_ns_steps = 5;
  NewtonSchulzType coefficients = NewtonSchulzType::quintic;
  MuonScale scale = MuonScale::spectral;
  double extra_scale_factor = 1;

  AdamW adamw() const { return {learning_rate, beta1, beta2, epsilon, weight_decay}; }
};
// The means of rows and columns of whole matrices replace their second moments
// (matrices/adafactor.h), so an Optimizer rejects it.
struct Adafactor {
  double learning_rate = 1e-3, decay_rate = 0.8, clip_threshold = 1, weight_decay = 0;
};
// It sums momenta over dp in place of gradients after freeze_step updates
// (one_bit/one_bit_adam.h), so an Optimizer rejects it. Names and defaults are DeepSpeed's.
struct OneBitAdam {
  double learning_rate = 1e-3, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0;
  std::int64_t freeze_step = 100'000;
};
// The same with LAMB's ratios, which are constant but for a factor after freeze_step updates
// (one_bit/one_bit_lamb.h).
struct OneBitLamb {
  double learning_rate = 1e-3, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0;
  std::int64_t freeze_step = 100'000;
  double min_coeff = 0.01, max_coeff = 10, coeff_beta = 0.9;
  double factor_min = 0.5, factor_max = 4, factor_threshold = 0.1;
};
// AdamW with moments in 8 bits (machine/device/dynamic_codes/adamw_8bit.h). Its blocks are those of
// parameters (eight_bit/adamw_8bit.h).
struct AdamW8Bit {
  double learning_rate = 1e-3, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0;

  AdamW adamw() const { return {learning_rate, beta1, beta2, epsilon, weight_decay}; }
};
using Rule = std::variant<AdamW, Sgd, Momentum, RmsProp, Adam, Lion, Lamb, Muon, Adafactor,
                          OneBitAdam, OneBitLamb, AdamW8Bit>;

// The names are "sgd", "momentum", "rmsprop", "adam", "adamw", "lion", "lamb", "muon", "adafactor",
// "one_bit_adam", "one_bit_lamb" and "adamw_8bit".
std::string_view name(const Rule& rule);
// Returns the names of rules that update a flat range with any bounds: all except the last six.
// find_rule returns the rule with its default options.
std::vector<std::string> rule_names();
Rule find_rule(std::string_view name);  // throws std::invalid_argument naming the nearest

// The states kept in addition to values of a dtype; the mask is a buffer. With Muon those of the
// elements that AdamW updates, with Adafactor those of vectors. Coded moments have a byte an
// element in place of the gradient's dtype.
struct KeptStates {
  bool master = false, first_moment = false, second_moment = false, mask = true;
  bool coded = false;  // the moments
  int count() const { return int{master} + int{first_moment} + int{second_moment}; }
};
KeptStates kept_states(const Rule& rule, Dtype value);
std::size_t optimizer_bytes_per_element(const Rule& rule, Dtype value);  // without scales
// Returns the bytes of the scales of a range's coded moments.
std::size_t scale_bytes(const Rule& rule, std::int64_t elements);
std::size_t mask_bytes_per_element(const Rule& rule);

// The states of one range during an update. All are [elements]. master: the values themselves if no
// master is kept. A moment that the rule does not have is empty. scales: of coded moments, [2,
// blocks]. fresh_variance: of 1-bit LAMB.
struct RangeStates {
  Tensor values, master, first_moment, second_moment;
  Tensor scales = {}, fresh_variance = {};
};
// Returns the states of these values: moments of zero, and a master copy if the rule keeps one.
RangeStates make_states(const Rule& rule, const Tensor& values);
enum class Decay : unsigned char { everywhere, masked, nowhere };
// Summarizes the mask. A uniform mask need not be read.
Decay decay_of(const std::vector<std::uint8_t>& decay_mask);
// Applies update number `step`, counted from 1. An element's bits do not depend on the range's
// ends, but coded moments on its blocks.
void update_range(const Rule& rule, std::int64_t step, const Tensor& gradient,
                  double gradient_scale, Decay decay, const std::uint8_t* decay_mask,
                  const RangeStates& range);

class Optimizer {
 public:
  // values [elements]: the range that this optimizer updates; one byte of decay_mask for each
  // element.
  Optimizer(Rule rule, const Tensor& values, const std::vector<std::uint8_t>& decay_mask);

  // Runs one step. gradient [elements], in the gradient's dtype, is multiplied by gradient_scale
  // first.
  void update(const Tensor& gradient, double gradient_scale);
  // Copies the values to the master after other code has set them (loaded, initialized).
  void values_changed();

  Rule& rule() { return rule_; }  // a learning-rate schedule writes here
  std::int64_t steps() const { return steps_; }
  void set_steps(std::int64_t steps) { steps_ = steps; }   // for loaded states
  const Tensor& master() const { return states_.master; }  // the values if no master is kept
  // Returns an empty tensor if the rule has no such moment. The first moment of Momentum is the
  // velocity.
  const Tensor& first_moment() const { return states_.first_moment; }
  const Tensor& second_moment() const { return states_.second_moment; }

  const RangeStates& states() const { return states_; }

 private:
  Rule rule_;
  RangeStates states_;
  machine::Memory decay_mask_;
  Decay decay_ = Decay::everywhere;
  std::int64_t steps_ = 0;
};

}  // namespace zero

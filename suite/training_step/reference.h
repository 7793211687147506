#pragma once
// The reference of training: the same model trained at degree 1 on one device, in double and in the
// judged dtype, and bounds on the effect of rounding on a sharded run. The run in double is a
// second implementation (plain_reference.h), unless the model is too large for it; then it is the
// judged code at degree 1.
//
// Rounding gives each raw gradient a relative error, in the 2-norm, of at most
//
//   eps_g = k C^(L+1-l) eps    k = 4, C = 1.03 (arXiv:2506.09280, Theorem 5.3), l: the layer
//   eps   = 2u + sqrt(n) u_a + sqrt(r) u_g + sqrt(M + 1) u_w
//
// It is relative to the gradient's own norm, or for a gradient that only passes through scores to
// other norms (gradient_terms.h). u is the dtype's unit roundoff, u_a the accumulator's, and n the
// length of the longest sum (Higham and Mary 2019, doi:10.1137/18M1226312: errors of sums grow as
// sqrt(n)). With products in 8 bits u is the roundoff of their coarsest format: 2^-3 of E5M2, for a
// loss 2^-4 of E4M3. So raw gradients of format hybrid are hardly bounded; fp8_linear judges its
// products. Values that are gathered in 8 bits (zero_quantized_weights) add the eps of bfloat16,
// whose roundoff is half a step of their codes. Gradients that are reduced in 4 bits
// (zero_quantized_gradients) add sqrt(2) / 14: a code for each of two hops, with half a step of
// 1/14 of the largest element of a block of 64, whose root mean square is at least 1/8 of it;
// errors of several ranks and micro-batches are independent, as their gradients. So they are
// loosely bounded; zero_step bounds each element by its codes. The last two terms are there for
// gradients that are added up in 16 bits (u_g), or that are sent over dp in 16 bits (u_w). Each of
// the M micro-batches of all ranks rounds a gradient at most three times: into the gradient, twice
// for a tied table, and in a sum over ranks or micro-batches. So r = 3 M + 3, with the roundings
// of prescale_gradients. An embedding rounds once for each row of a token, so the layer of the
// tables adds the tokens of the step to r. At most M ranks of dp have a micro-batch. This bounds
// the raw gradients of the first step, and first_step.h bounds the effect of such an error on the
// first update. Later, Adam's step does not depend on a gradient's size, which magnifies small
// errors, and no closed form covers ten steps. Therefore the double run is repeated `probes` times,
// with every gradient of every step displaced by exactly this error in a random direction. The
// bound of the final parameters and losses is the largest distance from the undisturbed run times
// `probe_margin` (a few random directions understate the worst one). If the bound of the first step
// is larger, it is used instead. Rounding of the values themselves is added. No measured deviation
// of the judged code is used.
//
// A model with experts is trained with the judged run's decisions (chosen and dropped tokens), in
// every run of the reference: a choice between two equal logits may differ by rounding, and then no
// bound holds. The unit judges the decisions by the judged logits, exactly, and the logits here.
//
// The reference skips the steps that the judged run skipped because its gradients overflowed.
// must_overflow (half_range.h) judges whether these steps must be skipped. "The first step" is the
// first step that is not skipped.

#include <array>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "harness/judge/judge.h"
#include "suite/reference/half_range.h"
#include "suite/reference/whole_values.h"
#include "suite/trainer/trainer.h"

namespace suite {

inline constexpr int reference_steps = 10;
inline constexpr int probes = 3;
inline constexpr double probe_margin = 4;

using SkippedSteps = std::array<bool, reference_steps>;
// Returns the first step that is not skipped, from 0; reference_steps if all are skipped.
int first_taken(const SkippedSteps& skipped);

// A whole parameter during training, in the shape of its global tensor.
struct ParameterHistory {
  int layer = 0;  // collectives::Parameter's
  // Raw: the sum over the tokens of the first step. Empty if the parameter is frozen.
  std::vector<double> first_gradient;
  std::vector<double> after_one, after_all;
  double first_norm = 0;        // of the value before the first step, for LAMB
  zero::MatrixRow matrix = {};  // the whole parameter's, for Muon; only rank 0 needs it
  double turns = 0;             // changes of an element's direction between steps, counted for Lion
  static auto members(auto& self) {
    return std::tie(self.layer, self.first_gradient, self.after_one, self.after_all,
                    self.first_norm, self.turns);
  }
};
struct History {
  std::map<std::string, ParameterHistory> parameters;
  std::vector<double> losses;  // means over tokens before each update
  double gradient_norm = 0;    // norm in the first step, before clipping
  double gradient_factor =
      1;  // clipping and the divisor scale the first step's raw gradients by this
  std::vector<StepMagnitudes> magnitudes;   // of each step in double, if the judged dtype is half
  std::vector<std::vector<double>> logits;  // of the routers in each step, by micro-batch and layer
  static auto members(auto& self) {
    return std::tie(self.parameters, self.losses, self.gradient_norm, self.gradient_factor,
                    self.magnitudes, self.logits);
  }
};

// Bounds of distances from the double run, in the 2-norm.
struct ParameterBounds {
  double first_gradient = 0, after_one = 0, after_all = 0;
};
struct Bounds {
  std::map<std::string, ParameterBounds> parameters;
  std::vector<double> losses;
  std::vector<double> logits;  // of each step
  static auto members(auto& self) { return std::tie(self.parameters, self.losses, self.logits); }
};

struct Reference {
  History exact;  // in double
  History same;   // in the dtype judged
  Bounds bounds;  // between two inexact runs: twice these
  static auto members(auto& self) { return std::tie(self.exact, self.same, self.bounds); }
};

// The decisions of the routers in each step (gathered_routing); empty without experts.
using TrainingRouting = std::vector<StepRouting>;
// Returns the logits of a step's routers, by micro-batch and layer.
std::vector<double> logits_of(const StepRouting& routing);

// Trains this config's model at degree 1. The ranks of the group share the trainings, and all get
// the result, which rank 0 keeps: it does not depend on the degrees, the schedule or the ZeRO
// stage. Collective over the group.
Reference reference_of(machine::World& world, const machine::Group& group,
                       const TrainingConfig& config, const Corpus& corpus,
                       const SkippedSteps& skipped = {}, const TrainingRouting& routing = {});

// The first step that is not skipped, in double at degree 1, and the skipped steps before it.
struct FirstStep {
  std::vector<StepMagnitudes> magnitudes;  // of each step, if the judged dtype is half
  double loss = 0;                         // loss and raw gradients are those of the last step
  std::map<std::string, std::vector<double>> gradients;  // of parameters that are not frozen
};
// Keeps only the last result for the process, because that of GPT-2 124M takes 1 GB.
const FirstStep& first_step_of(machine::World& world, const TrainingConfig& config,
                               const Corpus& corpus, std::size_t skipped_steps,
                               const TrainingRouting& routing = {});

// Returns a trainer of this config's model at degree 1 on this rank only, on `device` or the host.
// In half its loss scale is half of the config's, so that it does not overflow in a step that was
// not skipped.
std::unique_ptr<Trainer> reference_trainer(machine::World& world, TrainingConfig config,
                                           const Corpus& corpus, machine::Dtype dtype,
                                           machine::Device* device = nullptr);
// Returns a device for reference_trainer in double if the judged dtype is half; else null.
std::unique_ptr<RangeDevice> range_device(machine::World& world, const TrainingConfig& config);
// Makes this step overflow. Call it between reduce and update.
void make_overflow(Trainer& trainer);

// Returns the gradient of the sum of the losses, without the loss scale; empty if the parameter is
// frozen. Call it after reduce.
std::vector<double> unscaled_gradient(const Trainer& trainer,
                                      const collectives::Parameter& parameter);

// Compares a parameter with the double run and with degree 1: its raw gradient of step `first`, its
// value after that step and after all. tp_rank selects the judged part.
void compare_parameter(harness::Judge& judge, const collectives::Parameter& parameter,
                       const ParameterHistory& got, const Reference& reference, int first,
                       int tp_rank);

// Returns eps_g of a layer; by default that of the whole model, which is the largest.
double gradient_epsilon(const TrainingConfig& config, int layer = 0);
// Returns the relative error of the loss, which gradients do not change: eps_g without u_g and u_w.
double loss_epsilon(const TrainingConfig& config);

}  // namespace suite

#pragma once
// What training should come to: the same model trained at degree 1 on one device, in double and in
// the dtype judged, and how far rounding may carry a sharded run from it.
//
// The bound. Rounding makes each raw gradient wrong by a relative amount, in norm, of at most
//
//   eps_g = k C^(L+1-l) eps,   k = 4, C = 1.03   (arXiv:2506.09280, Theorem 5.3; l the parameter's
//   layer) eps   = 2u + sqrt(n) u_a
//
// with u the dtype's unit roundoff, u_a the accumulator's, and n the longest sum (Higham and Mary
// 2019, doi:10.1137/18M1226312: errors of sums grow as sqrt(n)). That bounds the raw gradients of
// the first step; first_step.h bounds what such an error makes of Adam's first update.
// Later Adam forgets a gradient's size and so magnifies small errors: no closed form follows it
// through ten steps. So the double run is repeated `probes` times
// with every gradient of every step displaced by exactly eps_g of its norm in a random direction,
// and the largest distance from the undisturbed run, times `probe_margin` (the worst of a few
// random directions understates the worst direction), or the bound of the first step if that is
// more, bounds parameters and losses in the end. Rounding of the values themselves is added on top.
// No measured deviation of the code under judgement enters.
//
// Steps that a run skips, for its gradients overflowed, are skipped here, too: whether they had to
// be is must_overflow's to say (half_range.h). So the first step is the first that is not skipped.

#include <array>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "suite/reference/whole_values.h"
#include "suite/trainer/trainer.h"
#include "suite/training_step/half_range.h"

namespace suite {

inline constexpr int reference_steps = 10;
inline constexpr int probes = 3;
inline constexpr double probe_margin = 4;

using SkippedSteps = std::array<bool, reference_steps>;
// The first that is not, from 0; reference_steps: all are.
int first_taken(const SkippedSteps& skipped);

// A parameter through training, whole, in the shape of its global tensor.
struct ParameterHistory {
  int layer = 0;                       // collectives::Parameter's
  std::vector<double> first_gradient;  // raw: summed over the tokens of the first step
  std::vector<double> after_one, after_all;
};
struct History {
  std::map<std::string, ParameterHistory> parameters;
  std::vector<double> losses;  // mean over tokens, before each step's update
  double gradient_norm = 0;    // of the first step, of all parameters, before it is clipped
  double gradient_factor = 1;  // of its raw gradients: clipped, divided; not sent
  std::vector<StepMagnitudes> magnitudes;  // of each step in double, beside half
};

// Distances in the 2-norm that rounding may make, from the double run.
struct ParameterBounds {
  double first_gradient = 0, after_one = 0, after_all = 0;
};
struct Bounds {
  std::map<std::string, ParameterBounds> parameters;
  std::vector<double> losses;
};

struct Reference {
  History exact;  // in double
  History same;   // in the dtype judged
  Bounds bounds;  // twice these between two inexact runs
};

// Trains this config's model at degree 1 on this rank alone (rank 0 of the world). Kept for the
// process: the degrees, the schedule and the ZeRO stage make no difference.
const Reference& reference_of(machine::World& world, const TrainingConfig& config,
                              const Corpus& corpus, const SkippedSteps& skipped = {});

// A trainer of this config's model at degree 1 on this rank alone: on `device`, or the host. In
// half its loss scale is half of the config's, that it overflows in no step that was not skipped.
std::unique_ptr<Trainer> reference_trainer(machine::World& world, TrainingConfig config,
                                           const Corpus& corpus, machine::Dtype dtype,
                                           machine::Device* device = nullptr);
// For reference_trainer in double, beside half; else null.
std::unique_ptr<RangeDevice> range_device(machine::World& world, const TrainingConfig& config);
// Between reduce and update: makes this an overflow.
void make_overflow(Trainer& trainer);

// Raw, after reduce: of the sum of the losses, whatever that was scaled by.
std::vector<double> unscaled_gradient(const Trainer& trainer,
                                      const collectives::Parameter& parameter);

// Of a gradient of that layer, relative; by default of the whole model, which is the loosest.
double gradient_epsilon(const TrainingConfig& config, int layer = 0);

// For sending from the rank that has it to the others.
std::string serialize(const Reference& reference);
Reference deserialize_reference(std::string_view text);

}  // namespace suite

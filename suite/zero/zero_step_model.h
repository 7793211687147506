#pragma once
// The model of zero_step: parameters in parts, and a backward that adds known gradients. It has
// cases that break real stacks: a parameter without elements, one of a single element, prime sizes,
// a frozen one, one that no part uses, and one that two parts share.

#include <cstdint>
#include <functional>
#include <vector>

#include "collectives/placement.h"
#include "machine/device/tensor.h"
#include "zero/cost/cost.h"
#include "zero/stages/step.h"

namespace suite {

class ZeroStepModel {
 public:
  // elements: of all parameters, 1000 at least. rank: of dp, for its contributions.
  ZeroStepModel(std::int64_t elements, machine::Dtype dtype, std::uint64_t seed, int rank,
                int ranks, int micro_batches);

  const std::vector<collectives::Parameter>& parameters() const { return parameters_; }
  std::vector<collectives::Parameter*> list();
  // As if every micro-batch had 7 tokens: a divisor that is not a power of two.
  zero::GradientPlan plan();
  bool trained(const collectives::Parameter& parameter) const { return parameter.name != "frozen"; }
  // For LayoutOptions, and for the formulas.
  std::vector<int> part_of_rows() const;
  zero::Usage usage() const;

  // Initial values of all parameters, one after the other; the dtype rounds them.
  const std::vector<double>& initial() const { return initial_; }
  std::vector<bool> decays() const;
  // The contribution of micro-batch index / ranks of rank index % ranks to the summed gradient of
  // an element.
  double contribution(int index, std::int64_t element) const;

  // All values, as uses of the step see them.
  std::vector<double> values(zero::Step& step);

  // forget drops the parameters' memory; set_values writes initial values to it.
  void forget();
  void set_values() const;
  // Makes the gradients of backward on the device, counted as activations.
  void make_gradients(machine::Device& device, machine::Dtype dtype);
  // For all micro-batches.
  void negate_gradients();
  // Replaces the gradient of the last element in the first micro-batch; returns the previous one.
  double replace_gradient(double value);
  // Forward and backward of one micro-batch. on_use is called for every parameter in use.
  using OnUse = std::function<void(const collectives::Parameter&, std::int64_t first_element)>;
  void run(zero::Step& step, int micro_batch, const OnUse& on_use = {});

 private:
  zero::Step::Part part(const std::vector<int>& rows);

  machine::Dtype dtype_;
  std::uint64_t seed_;
  int rank_, ranks_, micro_batches_;
  std::vector<collectives::Parameter> parameters_;
  std::vector<std::int64_t> first_element_;  // of each parameter
  std::vector<std::vector<int>> parts_;      // rows that a part uses
  std::vector<double> initial_;
  std::vector<machine::Tensor> gradients_;  // by micro-batch, of all parameters
};

}  // namespace suite

#pragma once
// What stands in for a model in zero_step: parameters in parts, and backward that adds gradients
// which are known beforehand. Among them is what trips real stacks: a parameter without elements,
// one of a single element, sizes that nothing divides, a frozen one, one that no part uses, and one
// that two parts share.

#include <cstdint>
#include <functional>
#include <string>
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
  static std::vector<std::string> frozen() { return {"frozen"}; }
  bool trained(const collectives::Parameter& parameter) const { return parameter.name != "frozen"; }
  // For LayoutOptions, and for the formulas.
  std::vector<int> part_of_rows() const;
  zero::Usage usage() const;

  // Of all parameters, one after the other; initial values as the dtype rounds them.
  const std::vector<double>& initial() const { return initial_; }
  std::vector<bool> decays() const;
  // To the summed gradient of an element: what micro-batch index / ranks of rank index % ranks
  // brings.
  double contribution(int index, std::int64_t element) const;

  // Gives the parameters' memory up, sets initial values in what they have.
  void forget();
  void set_values() const;
  // Backward's gradients: the device's memory, counted as activations.
  void make_gradients(machine::Device& device, machine::Dtype dtype);
  // Of all micro-batches.
  void negate_gradients();
  // Of the last element in the first micro-batch; returns what it was.
  double replace_gradient(double value);
  // Forward and backward of one micro-batch. on_use sees every parameter whose values are there.
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

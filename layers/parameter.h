#pragma once
// Parameters of layers, and their random initial values.
//
//   Parameter weight = declare(context, "fc1.weight", {4 * hidden, hidden}, {Spread::sharded, 0});
//   Initializer::gpt2(seed, layers).fill(context, {&weight});
//
// A declared parameter has no memory. A caller that packs parameters into one buffer sets value and
// gradient to slices of it. Otherwise Initializer::fill and zero_gradient allocate them.
//
// An initial value depends only on (seed, name, index in the global parameter). So every sharding
// starts from the same global model, and no two parameters start from the same values.

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "collectives/placement.h"
#include "layers/context.h"
#include "machine/device/random.h"

namespace layers {

using Parameters = std::vector<Parameter*>;
Parameters joined(std::initializer_list<Parameters> parts);

// Declares a parameter. Weight decay applies to weights, not to biases and gains. Throws
// std::invalid_argument if tp does not divide the sharded extent.
Parameter declare(const Context& context, std::string name, Shape global_shape, Placement placement,
                  Role role = Role::weight);

// Zeroes the gradient; allocates it first (Category::gradients) if it is empty.
void zero_gradient(const Context& context, Parameter& parameter);

struct Initializer {
  std::uint64_t seed = 0;
  double weight_stddev = 0.02;
  double residual_stddev = 0.02;
  double bias_stddev = 0;
  double gain_stddev = 0;  // around 1

  // Radford et al. 2019: normal 0.02, residual projections scaled by 1/sqrt(2 layers), biases zero,
  // gains one.
  static Initializer gpt2(std::uint64_t seed, int layers);
  // For conformance: like gpt2, with random biases and gains. A zero bias would hide a double
  // addition, and a gain of one would hide its omission.
  static Initializer conformance(std::uint64_t seed, int layers);

  // Around 1 for gains, around 0 for all others.
  double stddev(Role role) const;
  // Fills the values; allocates empty tensors first (Category::parameters).
  void fill(const Context& context, const Parameters& parameters) const;
};

using machine::random_key;

}  // namespace layers

#pragma once
// Parameters as layers declare them, and the random values they start from.
//
//   Parameter weight = declare(context, "fc1.weight", {4 * hidden, hidden}, {Spread::sharded, 0});
//   Initializer::gpt2(seed, layers).normal(context, weight, 0, 0.02);
//
// A declared parameter has no memory. Who packs parameters into one buffer sets value and gradient
// to slices of it; who does not lets Initializer::normal and zero_gradient give it its own.
//
// An initial value is a function of (seed, name, index in the global parameter) alone, so every
// sharding starts from the same global model, and no two parameters start from the same values.

#include <cstdint>
#include <string>
#include <vector>

#include "collectives/placement.h"
#include "layers/context.h"

namespace layers {

using Parameters = std::vector<collectives::Parameter*>;

// Weight decay is for matrices only. Throws std::invalid_argument when tp does not divide the cut
// extent.
collectives::Parameter declare(const Context& context, std::string name,
                               machine::Shape global_shape, collectives::Placement placement);

// Zeroes the gradient; allocates it first (Category::gradients) where it is empty.
void zero_gradient(const Context& context, collectives::Parameter& parameter);

struct Initializer {
  std::uint64_t seed = 0;
  double weight_stddev = 0.02;
  double residual_stddev = 0.02;  // of the projections that end in a residual sum
  double bias_stddev = 0;
  double gain_stddev = 0;  // around 1

  // Radford et al. 2019: normal 0.02, residual projections scaled by 1/sqrt(2 layers), biases zero,
  // gains one.
  static Initializer gpt2(std::uint64_t seed, int layers);
  // For conformance: as gpt2, but biases and gains are random too. A bias of zero hides that it was
  // added twice, a gain of one that it was left out.
  static Initializer conformance(std::uint64_t seed, int layers);

  // Fills value, of mean and standard deviation; allocates it first (Category::parameters) where it
  // is empty.
  void normal(const Context& context, collectives::Parameter& parameter, double mean,
              double stddev) const;
};

// 64-bit FNV-1a of the name, mixed with the seed.
std::uint64_t random_key(std::uint64_t seed, const std::string& name);

}  // namespace layers

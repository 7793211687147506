#include "layers/parameter.h"

#include <cmath>
#include <utility>

namespace layers {
namespace {

machine::Shape local_shape(const Context& context, const collectives::Parameter& parameter) {
  return collectives::Parameter::local_shape(parameter.name, parameter.global_shape,
                                             parameter.placement, context.tp.size());
}

}  // namespace

collectives::Parameter declare(const Context& context, std::string name,
                               machine::Shape global_shape, collectives::Placement placement) {
  collectives::Parameter parameter;
  parameter.name = std::move(name);
  parameter.global_shape = global_shape;
  parameter.placement = placement;
  parameter.weight_decay = global_shape.rank() > 1;
  local_shape(context,
              parameter);  // refuses a degree that does not divide before any memory is taken
  return parameter;
}

void zero_gradient(const Context& context, collectives::Parameter& parameter) {
  if (!parameter.gradient) {
    parameter.gradient =
        machine::Tensor(context.device, collectives::gradient_dtype(context.dtype),
                        local_shape(context, parameter), machine::Category::gradients);
  }
  context.kernels().fill(parameter.gradient, 0);
}

std::uint64_t random_key(std::uint64_t seed, const std::string& name) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char letter : name) {
    hash ^= static_cast<unsigned char>(letter);
    hash *= 0x100000001b3u;
  }
  // The finalizer of SplitMix64, so that neighbouring seeds give unrelated keys.
  std::uint64_t key = hash + seed * 0x9e3779b97f4a7c15u;
  key = (key ^ (key >> 30)) * 0xbf58476d1ce4e5b9u;
  key = (key ^ (key >> 27)) * 0x94d049bb133111ebu;
  return key ^ (key >> 31);
}

Initializer Initializer::gpt2(std::uint64_t seed, int layers) {
  Initializer result;
  result.seed = seed;
  result.residual_stddev = result.weight_stddev / std::sqrt(2.0 * layers);
  return result;
}

Initializer Initializer::conformance(std::uint64_t seed, int layers) {
  Initializer result = gpt2(seed, layers);
  result.bias_stddev = 0.1;
  result.gain_stddev = 0.1;
  return result;
}

void Initializer::normal(const Context& context, collectives::Parameter& parameter, double mean,
                         double stddev) const {
  if (!parameter.value)
    parameter.value =
        context.tensor(local_shape(context, parameter), machine::Category::parameters);
  context.kernels().fill_normal(parameter.value, random_key(seed, parameter.name),
                                parameter.region(context.tp.rank()), mean, stddev);
}

}  // namespace layers

#include "layers/parameter.h"

#include <cmath>
#include <utility>

namespace layers {

namespace {

Shape local_shape(const Context& context, const Parameter& parameter) {
  return Parameter::local_shape(parameter.name, parameter.global_shape, parameter.placement,
                                context.tp.size());
}

}  // namespace

Parameters joined(std::initializer_list<Parameters> parts) {
  Parameters all;
  for (const Parameters& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

Parameter declare(const Context& context, std::string name, Shape global_shape, Placement placement,
                  Role role) {
  Parameter parameter;
  parameter.name = std::move(name);
  parameter.global_shape = global_shape;
  parameter.placement = placement;
  parameter.role = role;
  parameter.weight_decay = role == Role::weight || role == Role::residual;
  local_shape(context, parameter);  // rejects the degree before any memory is allocated
  return parameter;
}

void zero_gradient(const Context& context, Parameter& parameter) {
  if (!parameter.gradient) {
    parameter.gradient = Tensor(context.device, collectives::gradient_dtype(context.dtype),
                                local_shape(context, parameter), Category::gradients);
  }
  context.kernels().fill(parameter.gradient, 0);
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

double Initializer::stddev(Role role) const {
  switch (role) {
    case Role::weight:
      return weight_stddev;
    case Role::residual:
      return residual_stddev;
    case Role::bias:
      return bias_stddev;
    case Role::gain:
      break;
  }
  return gain_stddev;
}

void Initializer::fill(const Context& context, const Parameters& parameters) const {
  for (Parameter* const parameter : parameters) {
    if (!parameter->value)
      parameter->value = context.tensor(local_shape(context, *parameter), Category::parameters);
    const Role role = parameter->role;
    context.kernels().fill_normal(parameter->value, random_key(seed, parameter->name),
                                  parameter->region(context.tp.rank()), role == Role::gain ? 1 : 0,
                                  stddev(role));
  }
}

}  // namespace layers

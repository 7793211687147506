#include "suite/claims/arithmetic.h"

#include "suite/plan/memory_plan.h"
#include "suite/plan/model_shape.h"
#include "suite/predict/collective_time.h"

namespace suite::arithmetic {
namespace {

configuration::Bytes bytes_of(const TrainingConfig::Model& model, const machine::Degrees& degrees,
                              int stage) {
  TrainingConfig training;
  training.model = model;
  training.degrees = degrees;
  training.precision.dtype = machine::Dtype::bfloat16;
  training.batch = {1, degrees.dp, 1};
  return configuration::held(training, {configuration::Counting::paper, stage}, {}).gpu;
}
double sum(const configuration::Bytes& gpu) {
  return gpu.parameters + gpu.gradients + gpu.optimizer;
}
TrainingConfig::Model of_count(double parameters) {
  TrainingConfig::Model model;
  model.parameters = std::llround(parameters);
  return model;
}

}  // namespace

bool rounds_to(double value, double stated, int digits) {
  const double unit = std::pow(10, std::floor(std::log10(stated)) - digits + 1);
  return std::abs(value - stated) <= 0.5 * unit * (1 + 1e-9);
}

double states(double parameters, int stage, int ranks) {
  return states_of(of_count(parameters), stage, ranks);
}
double states_of(const TrainingConfig::Model& model, int stage, int ranks) {
  return sum(bytes_of(model, {.dp = ranks}, stage));
}
double states_of_rank(double parameters, const machine::Degrees& degrees, int stage) {
  return sum(bytes_of(of_count(parameters), degrees, stage));
}
double values_of_rank(double parameters, const machine::Degrees& degrees, int stage) {
  return bytes_of(of_count(parameters), degrees, stage).parameters;
}

double gpt(int layers, int hidden, int heads, int vocabulary, int sequence) {
  TrainingConfig::Model model({.layers = layers,
                               .hidden = hidden,
                               .heads = heads,
                               .vocabulary = vocabulary,
                               .sequence = sequence});
  model.tokens = vocabulary;
  return configuration::parameters_of(model);
}

double ring_all_reduce(int ranks, double bytes) {
  return predict::sent_bytes(machine::Operation::all_reduce, ranks, bytes);
}
double ring_reduce_scatter(int ranks, double bytes) {
  return predict::sent_bytes(machine::Operation::reduce_scatter, ranks, bytes);
}

}  // namespace suite::arithmetic

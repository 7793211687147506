#include "suite/checkpoint/lamb_ratios.h"

#include <vector>

#include "zero/one_bit/one_bit_lamb.h"

namespace suite {
namespace {

using Ratios = zero::OneBitLambOptimizer::Ratios;

// Returns null with other optimizers.
std::vector<Ratios>* ratios_of(Trainer& trainer) {
  auto* const optimizer =
      dynamic_cast<zero::OneBitLambOptimizer*>(&trainer.optimizer_step().optimizer());
  return optimizer ? &optimizer->ratios() : nullptr;
}

zero::Piece piece_of(const collectives::Parameter& parameter) {
  return {.name = parameter.name + "/fresh_variance/ratios",
          .global = {3},
          .begin = {0},
          .extent = {3},
          .range = {0, 3}};
}

}  // namespace

void add_ratios(Trainer& trainer, zero::PieceSink& sink) {
  const std::vector<Ratios>* const all = ratios_of(trainer);
  if (!all || trainer.communicator("dp")->rank() != 0 ||
      trainer.grid().coordinate(machine::Axis::tp) != 0)
    return;
  const auto host = machine::make_host_device();
  const machine::Tensor numbers(*host, machine::Dtype::float64, {3}, machine::Category::buffers);
  for (std::size_t i = 0; i < all->size(); ++i) {
    const collectives::Parameter& parameter = *trainer.parameters()[i];
    if (!trainer.is_first_holder(parameter)) continue;
    const auto& [coefficient, last_factor, scaling] = (*all)[i];
    from_doubles(numbers, {coefficient, last_factor, scaling});
    sink.add(piece_of(parameter), numbers);
  }
}

void read_ratios(const zero::Checkpoint& checkpoint, Trainer& trainer) {
  std::vector<Ratios>* const all = ratios_of(trainer);
  if (!all) return;
  const auto host = machine::make_host_device();
  const machine::Tensor numbers(*host, machine::Dtype::float64, {3}, machine::Category::buffers);
  for (std::size_t i = 0; i < all->size(); ++i) {
    checkpoint.read(piece_of(*trainer.parameters()[i]), numbers);
    const std::vector<double> read = to_doubles(numbers);
    (*all)[i] = {read[0], read[1], read[2]};
  }
}

}  // namespace suite

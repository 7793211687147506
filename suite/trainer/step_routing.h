#pragma once
// The decisions of the routers in a step, of a model with experts. A trainer records them, the
// reference trains with the same ones, and the oracles count rows from them.
//
//   StepRouting mine = trainer.routing();
//   const StepRouting all = gathered_routing(trainer, mine);   // as at degree 1
//   reference.give_routing(all);

#include <cstdint>
#include <vector>

#include "layers/experts/routing.h"

namespace suite {

class Trainer;

// By micro-batch of the rank, then by layer of the model. A layer without experts, or of another
// stage, has an empty record.
using StepRouting = std::vector<std::vector<layers::RoutingRecord>>;

// Returns the records of all ranks in the order of the micro-batches at degree 1. Collective over
// the trainer's group.
StepRouting gathered_routing(const Trainer& trainer, const StepRouting& mine);

// Rows that the ranks that exchange tokens have for each expert (layers::MoeCase's), by micro-batch
// of the rank, then by layer.
using RoutedRows = std::vector<std::vector<std::vector<std::int64_t>>>;
// Collective over the trainer's group. Empty without experts.
RoutedRows routed_rows(const Trainer& trainer);

// Returns the sum of the auxiliary losses times the tokens of their micro-batches.
double sum_of_losses(const StepRouting& routing, int topk);

}  // namespace suite

#include "suite/trainer/step_routing.h"

#include <algorithm>

#include "suite/trainer/trainer.h"

namespace suite {

using machine::Axis;

StepRouting gathered_routing(const Trainer& trainer, const StepRouting& mine) {
  const TrainingConfig& config = trainer.config();
  const auto micro_batches = static_cast<std::size_t>(config.micro_batches());
  StepRouting all(micro_batches * static_cast<std::size_t>(config.degrees.dp),
                  std::vector<layers::RoutingRecord>(mine.empty() ? 0 : mine.front().size()));
  const std::vector<StepRouting> ranks = trainer.world().all_gather(trainer.group(), mine);
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const machine::Grid grid(config.degrees, static_cast<int>(rank));
    const auto first = static_cast<std::size_t>(grid.coordinate(Axis::dp)) * micro_batches;
    for (std::size_t i = 0; i < ranks[rank].size(); ++i)
      for (std::size_t layer = 0; layer < ranks[rank][i].size(); ++layer)
        if (!ranks[rank][i][layer].chosen.empty()) all[first + i][layer] = ranks[rank][i][layer];
  }
  return all;
}

RoutedRows routed_rows(const Trainer& trainer) {
  RoutedRows rows;
  if (!trainer.config().model.has_experts()) return rows;
  const layers::MoeConfig mixture = trainer.config().model.mixture();
  for (const std::vector<layers::RoutingRecord>& micro_batch : trainer.routing()) {
    auto& of_layers = rows.emplace_back();
    for (const layers::RoutingRecord& record : micro_batch) {
      auto& counts = of_layers.emplace_back(static_cast<std::size_t>(mixture.num_experts));
      for (const std::int32_t expert : record.choices)
        if (expert >= 0) ++counts[static_cast<std::size_t>(expert)];
      const auto tokens = std::ssize(record.chosen) / mixture.topk;
      if (mixture.pads()) std::ranges::fill(counts, mixture.capacity(tokens));
    }
  }
  return rows;
}

double sum_of_losses(const StepRouting& routing, int topk) {
  double sum = 0;
  for (const std::vector<layers::RoutingRecord>& micro_batch : routing)
    for (const layers::RoutingRecord& record : micro_batch)
      sum += static_cast<double>(std::ssize(record.chosen) / topk) * record.losses;
  return sum;
}

}  // namespace suite

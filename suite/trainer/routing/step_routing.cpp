#include "suite/trainer/routing/step_routing.h"

#include <algorithm>
#include <cstdint>

#include "machine/world/grid.h"

namespace suite {
namespace {

using layers::RoutingRecord;
using machine::Axis;

// Returns the row of a whole micro-batch for each row of a rank.
std::vector<std::int64_t> rows_of(const TrainingConfig& config, const machine::Grid& grid) {
  const std::int64_t sequence = config.model.sequence, length = sequence / config.degrees.cp;
  const std::int64_t own = config.batch.micro_batch_size * length / config.degrees.tp;
  const layers::SequencePlacement placement = config.context.placement(sequence, config.degrees.cp);
  std::vector<std::int64_t> rows;
  for (std::int64_t i = 0; i < own; ++i) {
    const std::int64_t row = grid.coordinate(Axis::tp) * own + i;
    rows.push_back(row / length * sequence +
                   placement.position(grid.coordinate(Axis::cp), row % length));
  }
  return rows;
}

// Copies the values of a rank's rows into those of the whole.
template <class Value>
void place(const std::vector<Value>& own, const std::vector<std::int64_t>& rows,
           std::size_t all_rows, std::vector<Value>& whole) {
  const std::size_t columns = own.size() / rows.size();
  whole.resize(all_rows * columns);
  for (std::size_t i = 0; i < rows.size(); ++i)
    std::copy_n(own.begin() + static_cast<std::ptrdiff_t>(i * columns), columns,
                whole.begin() +
                    static_cast<std::ptrdiff_t>(rows[i]) * static_cast<std::ptrdiff_t>(columns));
}

}  // namespace

StepRouting joined_routing(const TrainingConfig& config, const std::vector<StepRouting>& ranks) {
  const std::size_t micro_batches = ranks.front().size();
  const auto all_rows = static_cast<std::size_t>(config.batch.micro_batch_size) *
                        static_cast<std::size_t>(config.model.sequence);
  StepRouting all(micro_batches * static_cast<std::size_t>(config.degrees.dp),
                  std::vector<RoutingRecord>(ranks.front().front().size()));
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const machine::Grid grid(config.degrees, static_cast<int>(rank));
    const std::vector<std::int64_t> rows = rows_of(config, grid);
    const auto first = static_cast<std::size_t>(grid.coordinate(Axis::dp)) * micro_batches;
    for (std::size_t i = 0; i < ranks[rank].size(); ++i)
      for (std::size_t layer = 0; layer < ranks[rank][i].size(); ++layer) {
        const RoutingRecord& own = ranks[rank][i][layer];
        if (own.chosen.empty()) continue;
        RoutingRecord& whole = all[first + i][layer];
        place(own.logits, rows, all_rows, whole.logits);
        place(own.chosen, rows, all_rows, whole.chosen);
        place(own.choices, rows, all_rows, whole.choices);
        whole.losses += own.losses;
      }
  }
  return all;
}

}  // namespace suite

#pragma once
// The split of the ranges of a streamed optimizer (streamed_optimizer.h), and its bytes.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "zero/offload/offload.h"

namespace zero {

// Elements of one range that are updated together.
struct StreamPiece {
  std::size_t owned = 0;        // index of the range
  Range range;                  // in that range
  std::int64_t in_states = 0;   // index of its first element in all pieces
  std::int64_t in_staging = 0;  // index of its first element in the staging
  std::int64_t size() const { return range.size(); }
};
struct StreamPieces {
  std::vector<StreamPiece> all;
  std::int64_t elements = 0, longest = 0, staged = 0;
  std::int64_t count() const { return std::ssize(all); }
  const StreamPiece& at(std::int64_t index) const { return all[static_cast<std::size_t>(index)]; }
};

// The states that a store keeps, its bytes on the host's ledger, and the bytes that a pass reads
// from files and writes to them.
struct StoreCost {
  KeptStates kept;
  std::size_t optimizer = 0, buffers = 0, pass = 0;
};

struct StreamPlan {
  StreamPieces pieces;
  Dtype wide{}, gradient{};    // of the states, of the given gradients
  bool wide_values = false;    // values are their own master on the device
  bool stages_values = false;  // values need a staging
  StoreCost store;
  std::int64_t on_device = 0;  // elements that are not streamed
  std::int64_t going_up = 0;   // elements whose values are on the device

  // Values go down with the gradients if the only master is on the device.
  bool takes_values_down() const { return !store.kept.master; }
  StateCost cost(const Rule& rule, Dtype value) const;
};

// Returns the streamed elements of a range: its last ones.
Range streamed_part(std::int64_t size, const StateOptions& options);

// sizes, away, gradient_dtype and exceptions: see state_cost.
StreamPlan stream_plan(const Rule& rule, Dtype value, const std::vector<std::int64_t>& sizes,
                       const StateOptions& options, const std::vector<bool>& away,
                       std::optional<Dtype> gradient_dtype);

}  // namespace zero

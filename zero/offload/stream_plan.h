#pragma once
// How a streamed optimizer (streamed_optimizer.h) splits its ranges, and the bytes of that.

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
  std::int64_t in_states = 0;   // its first element among those of all pieces,
  std::int64_t in_staging = 0;  // and in the staging
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
  bool wide_values = false;    // they are their own master on the device
  bool stages_values = false;  // a staging for values is needed
  StoreCost store;
  std::int64_t on_device = 0, largest_on_device = 0;  // elements that are not streamed
  std::int64_t going_up = 0;                          // elements whose values are on the device

  // Values go down with the gradients: the only master is on the device.
  bool takes_values_down() const { return !store.kept.master; }
  StateCost cost(const Rule& rule, Dtype value) const;
};

// The elements of a range that are streamed: its last ones.
Range streamed_part(std::int64_t size, const StateOptions& options);

// sizes, away, gradient_dtype, exceptions: as state_cost's.
StreamPlan stream_plan(const Rule& rule, Dtype value, const std::vector<std::int64_t>& sizes,
                       const StateOptions& options, const std::vector<bool>& away,
                       std::optional<Dtype> gradient_dtype);

}  // namespace zero

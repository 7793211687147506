#pragma once
// The storage of the states of a streamed optimizer (streamed_optimizer.h): host memory
// (host_store.h) or a file (file_store.h). Both store them piece by piece, in order.

#include <cstdint>
#include <functional>
#include <string>

#include "zero/offload/io_ring.h"
#include "zero/offload/stream_plan.h"

namespace zero {

// The states of a piece. A state that is not kept is empty.
struct PieceStates {
  Tensor master, first_moment, second_moment;
  Decay decay = Decay::everywhere;
  const std::uint8_t* decay_mask = nullptr;  // [elements], if decay is masked
};

class StateStore {
 public:
  virtual ~StateStore() = default;

  // Calls use(piece, states) for each piece in order. The views are valid during the call. reads:
  // the states are loaded; otherwise they are undefined. writes: changes are kept.
  struct Access {
    bool reads = true, writes = true;
  };
  using Use = std::function<void(std::int64_t piece, const PieceStates& states)>;
  virtual void pass(Access access, const Use& use) = 0;

  virtual IoCounts counts() const { return {}; }   // of files
  virtual std::string note() const { return {}; }  // for the record
};

}  // namespace zero

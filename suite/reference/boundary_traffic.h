#pragma once
// The traffic of a pipeline's rank between stages in one step, in closed form.
//
// Every micro-batch passes every boundary between parts once forward and once backward (Narayanan
// et al. 2021, arXiv:2104.04473, section 4.1). With p stages, m micro-batches and v chunks, a rank
// sends this number of equal messages, and receives the same number:
//   looped          m (2 v - [first] - [last])   the last stage sends its chunks back to the
//                                                first stage (interleaved), except the last chunk
//   v-shaped        2 m (2 - [first] - [last])   two chunks; the last stage sends none at the turn
//   bidirectional   m (2 - [first] - [last])     each copy runs a part of the micro-batches
// [first] is 1 on the first stage and [last] on the last, else 0. A single stage sends nothing. The
// formula reads no message list and no schedule.

#include <cstdint>

#include "machine/link/link.h"
#include "pipeline/schedule.h"

namespace suite {

machine::Traffic boundary_traffic(const pipeline::Placement& placement, int stage,
                                  int micro_batches, std::uint64_t bytes);

}  // namespace suite

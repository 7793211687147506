#pragma once
// Proof of a schedule by symbolic execution, without ranks and tensors. The only times are the
// costs of the actions.
//
//   if (Proof proof = prove(find_schedule("1f1b"), 4, 8); !proof) std::cerr << proof.fault;
//
// The proof of the actions shows:
//   - On every stage, each micro-batch of each chunk (of a copy of the model: each of its share)
//     runs forward exactly once and backward exactly once, as B or as I and W. Forward comes before
//     backward, and I before W.
//   - With FIFO channels, sends that start and receives that block, no stage waits forever, also
//   not
//     for a slot of the outbox. Every receive gets its own message, in the order of sending. Every
//     message is received.
// The proof of a listed schedule also compares with its paper's claims:
//   - the maximum number of live micro-batches on each stage;
//   - the time of a step, exactly, for several costs of F, I and W that all stages share. If the
//     paper's formula does not hold, the time is not compared and the proof states the requirement.

#include <string>
#include <vector>

#include "pipeline/schedule.h"
#include "pipeline/simulate.h"

namespace pipeline {

struct Proof {
  std::string fault;  // empty, or the error, with the schedule drawn and the bad action marked
  std::vector<std::string> unclaimed;  // "F = 5, I = 3, W = 11: the formula needs F = I = W"
  explicit operator bool() const { return fault.empty(); }
};

Proof prove(const StageSchedules& schedules, int micro_batches);
Proof prove(const Schedule& schedule, const Size& size);

}  // namespace pipeline

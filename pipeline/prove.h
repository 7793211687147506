#pragma once
// Proof of a schedule by symbolic execution: no ranks, no tensors, no time but that of its costs.
//
//   if (Proof proof = prove(find_schedule("1f1b"), 4, 8); !proof) std::cerr << proof.fault;
//
// Proved of the actions:
//   - on every stage each micro-batch of each chunk (of a copy of the model: each of its share)
//   runs
//     forward exactly once and backward exactly once, as B or as I and W; forward comes before
//     backward, I before W;
//   - with FIFO channels, sends that start and receives that block, no stage waits forever, also
//   not
//     for a slot of the outbox; every receive gets its own message, in the order of sending; every
//     message is received;
// and of a listed schedule, against what its paper claims:
//   - the most micro-batches alive on each stage;
//   - the time of a step, exactly, for several costs of F, I and W that all stages share. Where the
//     paper's formula does not hold, nothing is compared and the proof says what it needs.

#include <string>
#include <vector>

#include "pipeline/schedule.h"
#include "pipeline/simulate.h"

namespace pipeline {

struct Proof {
  std::string fault;  // empty, or what is wrong with the schedule drawn and the bad action marked
  std::vector<std::string> unclaimed;  // "F = 5, I = 3, W = 11: the formula needs F = I = W"
  explicit operator bool() const { return fault.empty(); }
};

Proof prove(const StageSchedules& schedules, int micro_batches);
Proof prove(const Schedule& schedule, const Size& size);

}  // namespace pipeline

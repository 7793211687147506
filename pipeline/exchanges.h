#pragma once
// The messages of all stages over links whose sends wait for their receives (Link::is_rendezvous),
// in groups that cannot deadlock.
//
// The stages proceed in rounds. In a round each stage runs its next action, if it has the action's
// message and a slot for the message that the action sends. Then each message moves whose receiver
// needs it for its next action. The messages of one stage in one round are one exchange. It meets
// only exchanges of the same round, and each stage starts its exchanges in the order of the rounds.
//
//   exchanges_of(1f1b with 2 stages and 2 micro-batches), > send, < receive:
//   stage 0: F0 (>F0) F1 (>F1 <B0) B0 (<B1) B1
//   stage 1: (<F0) F0 B0 (>B0 <F1) F1 B1 (>B1)

#include <optional>
#include <string>
#include <vector>

#include "pipeline/messages.h"
#include "pipeline/schedule.h"

namespace pipeline {

struct Exchange {
  std::vector<Message> sends;      // each the oldest message of its channel
  std::optional<Message> receive;  // the message of the stage's next action
};

// The exchanges of a stage before each of its actions; the last element: after all actions.
using StageExchanges = std::vector<std::vector<Exchange>>;

// Returns the exchanges of every stage. Throws std::logic_error if the schedules deadlock. Proved
// schedules do not (prove.h).
std::vector<StageExchanges> exchanges_of(const StageSchedules& schedules);

// Returns the actions and exchanges of a stage, as in the example above.
std::string text(const StageSchedule& schedule, const StageExchanges& exchanges);

}  // namespace pipeline

#pragma once
// Which action receives and sends what: the one place that says so. The prover, the simulation and
// the executor read it.
//
// Stage i hands activations to stage i+1 and gradients back to stage i-1. With several chunks the
// last stage hands chunk c's activations to the first stage's chunk c+1. An action receives when it
// starts and sends when it ends; messages from one stage to another are FIFO, and a receive blocks.
// A send only starts: it waits for nothing but its slot in the outbox.

#include <optional>

#include "pipeline/schedule.h"

namespace pipeline {

enum class Content : unsigned char { activation, gradient };

struct Message {
  int peer;  // the stage it comes from, or goes to
  Content content;
  int micro_batch;
  int depth;  // chunk * stages + stage of the receiver
};

// A stage has this many buffers for outgoing activations, and as many for outgoing gradients:
// before it computes the third message, the first must have been taken. Two let a message travel
// while the next is made.
inline constexpr int outbox_slots = 2;

constexpr int depth(const Action& action, int stage, int stages) {
  return action.chunk * stages + stage;
}

constexpr std::optional<Message> receives(const Action& action, int stage, int stages, int chunks) {
  const int here = depth(action, stage, stages);
  if (action.kind == Kind::forward && here > 0) {
    return Message{(stage + stages - 1) % stages, Content::activation, action.micro_batch, here};
  }
  if ((action.kind == Kind::backward || action.kind == Kind::backward_input) &&
      here < chunks * stages - 1) {
    return Message{(stage + 1) % stages, Content::gradient, action.micro_batch, here};
  }
  return {};
}

constexpr std::optional<Message> sends(const Action& action, int stage, int stages, int chunks) {
  const int here = depth(action, stage, stages);
  if (action.kind == Kind::forward && here < chunks * stages - 1) {
    return Message{(stage + 1) % stages, Content::activation, action.micro_batch, here + 1};
  }
  if ((action.kind == Kind::backward || action.kind == Kind::backward_input) && here > 0) {
    return Message{(stage + stages - 1) % stages, Content::gradient, action.micro_batch, here - 1};
  }
  return {};
}

constexpr int num_chunks(const StageSchedules& schedules) {
  int chunks = 1;
  for (const StageSchedule& schedule : schedules) {
    for (const Action& action : schedule)
      chunks = action.chunk + 1 > chunks ? action.chunk + 1 : chunks;
  }
  return chunks;
}

static_assert(!receives(forward(0), 0, 4, 1) && !sends(forward(0), 3, 4, 1));
static_assert(receives(backward(2), 0, 4, 1)->peer == 1 && !sends(backward(2), 0, 4, 1));
static_assert(sends(forward(0, 0), 3, 4, 2)->peer == 0 &&
              sends(forward(0, 0), 3, 4, 2)->depth == 4);
static_assert(!receives(backward_weights(0), 1, 4, 1) && !sends(backward_weights(0), 1, 4, 1));

}  // namespace pipeline

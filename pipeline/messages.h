#pragma once
// The messages that each action receives and sends. The prover, the simulation and the executor all
// use these functions.
//
// An activation is sent to the place of the next part of the model, and its gradient back to the
// previous part. An action receives when it starts and sends when it ends. Messages of one content
// from one stage to another are a channel: FIFO, and a receive blocks. A send waits only for its
// slot in the outbox. If both parts are on one stage (the turn of a V), there is no message: one
// action reads the tensor that the other action writes.

#include <optional>

#include "pipeline/schedule.h"

namespace pipeline {

enum class Content : unsigned char { activation, gradient };

struct Message {
  int peer;  // the sending or receiving stage; this stage itself if there is no message
  Content content;
  int micro_batch;
  int chunk;  // of the receiver
  int part;   // of the receiver
};

// The number of buffers of a stage for each channel that it sends on. With two, a message is in
// transit while the next is computed. Before the third is computed, the first must have been
// received.
inline constexpr int outbox_slots = 2;

// When an action's message is received: when the action starts, or while the action before it
// computes (Megatron-LM's --overlap-p2p-communication). A message that is received ahead occupies
// its buffer from the start of the action before.
enum class Receives : unsigned char { when_needed, ahead };

constexpr bool is_backward_of_input(Kind kind) {
  return kind == Kind::backward || kind == Kind::backward_input;
}

constexpr std::optional<Message> receives(const Action& action, int stage,
                                          const Placement& placement) {
  const int copy = placement.copy(stage, action.chunk), part = placement.part(stage, action.chunk);
  const auto from = [&](int sender, Content content) {
    return Message{placement.at(copy, sender).stage, content, action.micro_batch, action.chunk,
                   part};
  };
  if (action.kind == Kind::forward && part > 0) return from(part - 1, Content::activation);
  if (is_backward_of_input(action.kind) && part < placement.parts() - 1)
    return from(part + 1, Content::gradient);
  return {};
}

constexpr std::optional<Message> sends(const Action& action, int stage,
                                       const Placement& placement) {
  const int copy = placement.copy(stage, action.chunk), part = placement.part(stage, action.chunk);
  const auto to = [&](int receiver, Content content) {
    const Place& place = placement.at(copy, receiver);
    return Message{place.stage, content, action.micro_batch, place.chunk, receiver};
  };
  if (action.kind == Kind::forward && part < placement.parts() - 1)
    return to(part + 1, Content::activation);
  if (is_backward_of_input(action.kind) && part > 0) return to(part - 1, Content::gradient);
  return {};
}

static_assert(!receives(forward(0), 0, looped(4, 1)) && !sends(forward(0), 3, looped(4, 1)));
static_assert(receives(backward(2), 0, looped(4, 1))->peer == 1 &&
              !sends(backward(2), 0, looped(4, 1)));
static_assert(sends(forward(0), 3, looped(4, 2))->peer == 0 &&
              sends(forward(0), 3, looped(4, 2))->part == 4);
static_assert(!receives(backward_weights(0), 1, looped(4, 1)) &&
              !sends(backward_weights(0), 1, looped(4, 1)));
static_assert(sends(forward(0), 3, v_shaped(4))->peer == 3 &&
              sends(forward(0, 1), 3, v_shaped(4))->peer == 2);
static_assert(sends(backward(0), 0, bidirectional(4)).has_value() == false &&
              sends(backward(0, 1), 0, bidirectional(4))->peer == 1);

}  // namespace pipeline

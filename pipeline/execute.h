#pragma once
// Runs any proved schedule: one stage a rank, the stage's work as callables, messages over a link.
//
//   Executor executor(all_stages(find_schedule("1f1b"), stages, micro_batches), micro_batches,
//                     {{tokens, hidden}, Dtype::float32}, link, world.device(),
//                     world.host_device());                // link: of the pp group
//   Timeline timeline = executor.run(stage);              // one step; may be called again
//
// A receive waits and copies into the executor's buffer; a send starts and travels while the stage
// goes on computing, and is waited for only when its slot in the outbox is used again (messages.h).
// Where the next part of the model lies on the same stage, one action writes where the other reads.
// On a device that the host can't read (CUDA) messages pass through buffers of a host device.
//
// Memory on the stage's device, from the schedule alone (expected_memory):
//   activations  inputs received and not yet released: as many as are alive at once, min(p-i, m) on
//                stage i of 1F1B (none where the model begins; where it turns one more, made before
//                its forward begins). An input stays valid and unchanged from its forward to the
//                end of its backward (backward_weights where the halves are parted), so a stage
//                keeps the tensor it was given and never copies it.
//   buffers      outgoing activations and outgoing gradients, at most outbox_slots for each stage
//                that they go to; incoming gradients: one, or as many as wait at once from I to W
//                where the halves are parted.
// With staging, the host device holds as many outgoing buffers and one incoming, all as buffers.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "machine/device/device.h"
#include "machine/device/tensor.h"
#include "machine/link/link.h"
#include "pipeline/messages.h"
#include "pipeline/schedule.h"
#include "pipeline/timeline.h"

namespace pipeline {

// The tensor that passes between neighbours: the same between all stages, both ways.
struct Boundary {
  machine::Shape shape;  // [tokens of a micro-batch, hidden]
  machine::Dtype dtype = machine::Dtype::float32;
  std::size_t bytes() const { return shape.size() * machine::size_of(dtype); }
};

// The work of one stage. Only the kinds of actions that the schedule uses are needed. Tensors are
// boundaries; the ones at the ends of the model are empty: input and d_input where the model
// begins, output and d_output where it ends (the stage makes the loss and its gradient itself).
// Work may be queued on device.stream(); the executor synchronizes it before it sends.
struct Stage {
  using Tensor = machine::Tensor;
  std::function<void(const Action&, const Tensor& input, const Tensor& output)> forward;
  std::function<void(const Action&, const Tensor& input, const Tensor& d_output,
                     const Tensor& d_input)>
      backward;
  std::function<void(const Action&, const Tensor& input, const Tensor& d_output,
                     const Tensor& d_input)>
      backward_input;
  std::function<void(const Action&, const Tensor& input, const Tensor& d_output)> backward_weights;
};

// The links of the messages. A schedule that sends activations and gradients to the same stage
// needs a link for each, because messages on a link are in one order, and the two have no common
// order.
struct Links {
  Links(machine::Link& both) : Links(both, both) {}
  Links(machine::Link& of_activations, machine::Link& of_gradients)
      : activations(of_activations), gradients(of_gradients) {}
  machine::Link& activations;
  machine::Link& gradients;
  machine::Link& of(Content content) const {
    return content == Content::activation ? activations : gradients;
  }
};

// Whether some stage sends activations and gradients to one and the same stage.
bool needs_two_links(const StageSchedules& schedules);

struct Timeline {
  double origin_s = 0;   // steady clock at the start of run: the same clock for all ranks of a host
  StageTimeline events;  // seconds since origin
  int peak_in_flight = 0;  // micro-batches (of a chunk) really alive at once
};

class Executor {
 public:
  // The rank's stage is its place in the links' group. device holds the boundaries; host must be
  // readable by the host and able to feed the links (World::device()), and is used only when device
  // is not. Throws std::invalid_argument with the drawing when the schedule can't be proved, or
  // when one link is given and two are needed.
  Executor(const StageSchedules& schedules, int micro_batches, Boundary boundary, Links links,
           machine::Device& device, machine::Device& host);

  const StageSchedule& plan() const { return plan_; }
  // One step: every action of this stage, in order. Collective over the links' group; returns when
  // the neighbours have taken everything. Messages count on the links under (send_receive, boundary
  // dtype). Throws std::invalid_argument when the stage lacks a callable that the schedule needs.
  Timeline run(const Stage& stage);

 private:
  // The buffers of one content: given out by micro-batch, reused when given back.
  struct Pool {
    std::vector<machine::Tensor> slots;
    std::vector<std::optional<Action>> holders;  // of each slot; none: it is free
    const machine::Tensor& take(const Action& action);
    machine::Tensor of(const Action& action) const;  // empty when it holds none
    void release(const Action& action);
  };
  struct Outbox {
    std::vector<machine::Tensor> slots;   // on the stage's device
    std::vector<machine::Tensor> staged;  // on the host, with staging
    std::vector<std::uint64_t> numbers;   // of the message that left from each slot
    std::size_t next = 0;
  };

  void receive(const Message& message, const machine::Tensor& into);
  machine::Tensor open_slot(const Message& message);
  void send(const Message& message);
  void compute(const Stage& stage, const Action& action, const machine::Tensor& out) const;
  Outbox& outbox(const Message& message) { return outboxes_.at({message.content, message.peer}); }
  Pool& pool(Content content) { return content == Content::activation ? inputs_ : d_outputs_; }

  int stage_;
  Placement placement_;
  StageSchedule plan_;
  Boundary boundary_;
  Links links_;
  machine::Device& device_;
  bool staging_;
  Pool inputs_, d_outputs_;
  std::map<std::pair<Content, int>, Outbox> outboxes_;  // by content and receiver
  machine::Tensor staged_in_;
};

// Bytes that an Executor holds on the stage's device, for the memory oracle.
struct ExpectedMemory {
  std::size_t activations = 0, buffers = 0;
};
ExpectedMemory expected_memory(const StageSchedules& schedules, int stage,
                               const Boundary& boundary);

// Bytes and messages that a stage sends in one step: one boundary for each action that sends.
machine::Traffic expected_traffic(const StageSchedules& schedules, int stage,
                                  const Boundary& boundary);

}  // namespace pipeline

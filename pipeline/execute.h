#pragma once
// Runs any proved schedule: one stage per rank, the stage's work as callables, messages over a
// link.
//
//   Executor executor(all_stages(find_schedule("1f1b"), stages, micro_batches), micro_batches,
//                     {{tokens, hidden}, Dtype::float32}, link, world.device(),
//                     world.host_device());                // link: of the pp group
//   executor.run(stage);                                 // one step; may be called again
//   executor.timeline();                                 // of this step
//
// A receive waits and copies into the executor's buffer. A send runs while the stage computes. The
// executor waits for it only before its slot in the outbox is reused (messages.h). If the next part
// of the model is on the same stage, one action reads the tensor that the other action writes.
//
// With Receives::ahead a message is received during the action before its own: over shared_memory
// by a thread, over cuda_ipc in the link's own stream, over mpi as far as the library moves a
// posted receive while the stage computes. The order of messages on a link is the same.
//
// Links of CUDA devices (Link::stream) move the boundaries themselves. The executor then only
// queues work and messages on the device's stream, and never waits for the stream. If a send waits
// for its receive (nccl), a stage's messages move in groups (exchanges.h). Over other links,
// messages of a device that the host cannot read pass through buffers of a host device.
//
// Memory on the stage's device, from the schedule alone (expected_memory):
//   activations  inputs received and not released: the maximum number of live ones, min(p-i, m) on
//                stage i of 1F1B. The first part of the model has no inputs. At a turn there is one
//                more, which is written before its forward begins. An input stays valid and
//                unchanged from its forward to the end of its backward (backward_weights if the
//                halves are separate). So a stage keeps the given tensor and does not copy it.
//   buffers      outgoing activations and outgoing gradients, at most outbox_slots of each for each
//                receiving stage; incoming gradients: one, or, if the halves are separate, the
//                maximum number that wait from I to W.
// With Receives::ahead, a message counts from the start of the action before its own.
// With staging, the host device holds the same number of outgoing buffers and one incoming buffer,
// all as buffers.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "machine/device/device.h"
#include "machine/device/tensor.h"
#include "machine/link/link.h"
#include "machine/world/worker.h"
#include "pipeline/exchanges.h"
#include "pipeline/messages.h"
#include "pipeline/schedule.h"
#include "pipeline/timeline.h"

namespace pipeline {

// The tensor that neighbours exchange. It is equal between all stages and in both directions.
struct Boundary {
  machine::Shape shape;  // [tokens of a micro-batch, hidden]
  machine::Dtype dtype = machine::Dtype::float32;
  std::size_t bytes() const { return shape.size() * machine::size_of(dtype); }
};

// The work of one stage. Only callables for the schedule's kinds of actions are required. Tensors
// are boundaries. In the first part of the model input and d_input are empty. In the last part
// output and d_output are empty, and the stage computes the loss and its gradient. Work may be
// queued on device.stream().
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

// The links of the messages, of one transport. A schedule that sends activations and gradients to
// the same stage needs a link for each. Messages on a link are in one order, and the two have no
// common order. If a send waits for its receive, `activations` moves all messages.
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

// Returns whether any stage sends activations and gradients to the same stage.
bool needs_two_links(const StageSchedules& schedules);

struct Timeline {
  double origin_s = 0;     // steady clock at the start of run; one clock for all ranks of a host
  StageTimeline events;    // seconds since origin
  int peak_in_flight = 0;  // measured maximum of live micro-batches (of a chunk)
};

class Executor {
 public:
  // The rank's stage is its index in the links' group. device holds the boundaries. host must be
  // readable by the host, and links must be able to send its memory. It is used only if the host
  // cannot read device and the links do not move its memory. Throws std::invalid_argument with the
  // drawing if the schedule cannot be proved, if one link is given but two are required, if the
  // links move memory of another device, and if messages that move in groups shall arrive ahead.
  Executor(const StageSchedules& schedules, int micro_batches, Boundary boundary, Links links,
           machine::Device& device, machine::Device& host,
           Receives receives = Receives::when_needed);

  const StageSchedule& plan() const { return plan_; }
  enum class Times : unsigned char { measured, none };
  // Runs one step: every action of this stage, in order. Collective over the links' group. Returns
  // when the neighbours have received all messages, for links with a stream in its order. Messages
  // count on the links under (send_receive, boundary dtype). Throws std::invalid_argument if the
  // stage lacks a callable that the schedule needs. While the device's stream is captured, the step
  // has no times: its timeline has only the order.
  void run(const Stage& stage, Times times = Times::measured);
  // Returns the times of the last step. For links with a stream they are times of the device, and
  // the first call after a step waits for the stream.
  const Timeline& timeline();

 private:
  // The buffers of one content, assigned to micro-batches and reused after release.
  struct Pool {
    std::vector<machine::Tensor> slots;
    std::vector<std::optional<Action>> holders;  // by slot; empty: free
    const machine::Tensor& take(const Action& action);
    machine::Tensor of(const Action& action) const;  // empty if no slot holds it
    void release(const Action& action);
  };
  struct Outbox {
    std::vector<machine::Tensor> slots;   // on the stage's device
    std::vector<machine::Tensor> staged;  // on the host, with staging
    std::vector<std::uint64_t> numbers;   // by slot: number of its last message
    // By slot: the end of its last exchange in the link's own stream, until the device's stream
    // waits for it.
    std::vector<std::shared_ptr<machine::Event>> ends;
    std::size_t next = 0;    // slot of the next message
    std::size_t oldest = 0;  // slot of the oldest message that no exchange has sent
  };
  // An event of the timeline whose times the device still records.
  struct Queued {
    Doing doing;
    Action action;
    std::unique_ptr<machine::Event> start, end;
  };

  template <class Work>
  void timed(Doing doing, const Action& action, const Work& work);
  // Returns the message from another stage that the action at this position needs.
  std::optional<Message> incoming(std::size_t position) const;
  void receive_ahead(std::size_t position);
  void receive(const Message& message);  // into the slot that was taken for it
  void exchange(const Exchange& exchange);
  void exchange_before(std::size_t position);
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
  bool streamed_, staging_;
  Receives receives_;
  StageExchanges exchanges_;  // empty if sends do not wait for their receives
  Pool inputs_, d_outputs_;
  std::map<std::pair<Content, int>, Outbox> outboxes_;  // by content and receiver
  machine::Tensor staged_in_;
  std::unique_ptr<machine::Event> slot_free_;  // of the message that is received ahead in a stream
  Times times_ = Times::measured;
  Timeline timeline_;
  std::vector<Queued> queued_;               // the events that timeline_ lacks
  std::unique_ptr<machine::Worker> worker_;  // last: its job uses the slots
};

// Bytes that an Executor holds on the stage's device, for the memory oracle.
struct ExpectedMemory {
  std::size_t activations = 0, buffers = 0;
};
ExpectedMemory expected_memory(const StageSchedules& schedules, int stage, const Boundary& boundary,
                               Receives receives = Receives::when_needed);

// Returns the bytes and messages that a stage sends and receives in one step: one boundary per
// message.
machine::Traffic expected_traffic(const StageSchedules& schedules, int stage,
                                  const Boundary& boundary);

}  // namespace pipeline

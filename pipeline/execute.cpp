#include "pipeline/execute.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "machine/base/clock.h"
#include "machine/base/error.h"
#include "machine/world/step_clock.h"
#include "pipeline/prove.h"

namespace pipeline {
namespace {

using machine::Category;
using machine::Tensor;

bool ends_micro_batch(Kind kind) {
  return kind == Kind::backward || kind == Kind::backward_weights;
}

// Returns the action that holds a message's tensor in the receiver's pool.
Action holder_of(const Message& message) {
  return {message.content == Content::activation ? Kind::forward : Kind::backward,
          message.micro_batch, message.chunk};
}

// Numbers of boundaries that one stage needs at the same time.
struct Slots {
  std::size_t inputs = 0, d_outputs = 0;
  std::map<std::pair<Content, int>, std::size_t> sends;  // in one step, by content and receiver
  std::size_t receives = 0;
  // Returns the number of sends, counting at most `most` for each channel.
  std::size_t sent(std::size_t most = std::numeric_limits<std::size_t>::max()) const {
    std::size_t sum = 0;
    for (const auto& [channel, count] : sends) sum += std::min(most, count);
    return sum;
  }
};

Slots count_slots(const StageSchedules& schedules, int stage, Receives how) {
  const Placement& placement = schedules.placement;
  Slots slots;
  std::size_t inputs = 0, d_outputs = 0;
  const auto hold = [&](Content content) {
    std::size_t& held = content == Content::activation ? inputs : d_outputs;
    std::size_t& peak = content == Content::activation ? slots.inputs : slots.d_outputs;
    peak = std::max(peak, ++held);
  };
  const auto hold_incoming = [&](const Action& action) {
    const auto message = receives(action, stage, placement);
    if (!message || message->peer == stage) return;
    hold(message->content);
    ++slots.receives;
  };
  const StageSchedule& actions = schedules.of(stage);
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const Action& action = actions[i];
    if (i == 0 || how == Receives::when_needed) hold_incoming(action);
    if (i + 1 < actions.size() && how == Receives::ahead) hold_incoming(actions[i + 1]);
    if (const auto message = sends(action, stage, placement)) {
      if (message->peer == stage)
        hold(message->content);
      else
        ++slots.sends[{message->content, message->peer}];
    }
    if (ends_micro_batch(action.kind)) {
      const auto received = [&](const Action& by) {
        return receives(by, stage, placement).has_value();
      };
      inputs -= received(forward(action.micro_batch, action.chunk));
      d_outputs -= received(backward(action.micro_batch, action.chunk));
    }
  }
  return slots;
}

machine::Part part_of(Kind kind) {
  if (kind == Kind::forward) return machine::Part::forward;
  // The weights' half of a whole backward reports itself.
  return kind == Kind::backward_weights ? machine::Part::backward_weights
                                        : machine::Part::backward_input;
}

bool holds(const std::optional<Action>& holder, const Action& action) {
  return holder && holder->micro_batch == action.micro_batch && holder->chunk == action.chunk;
}

}  // namespace

const Tensor& Executor::Pool::take(const Action& action) {
  const auto free = std::find(holders.begin(), holders.end(), std::nullopt);
  SHARDMARK_CHECK(free != holders.end(), ==, true);
  *free = action;
  return slots[free - holders.begin()];
}

Tensor Executor::Pool::of(const Action& action) const {
  for (std::size_t i = 0; i < slots.size(); ++i)
    if (holds(holders[i], action)) return slots[i];
  return {};
}

void Executor::Pool::release(const Action& action) {
  for (std::optional<Action>& holder : holders)
    if (holds(holder, action)) holder.reset();
}

bool needs_two_links(const StageSchedules& schedules) {
  for (int stage = 0; stage < static_cast<int>(schedules.size()); ++stage) {
    const Slots slots = count_slots(schedules, stage, Receives::when_needed);
    for (const auto& [channel, count] : slots.sends)
      if (channel.first == Content::activation &&
          slots.sends.contains({Content::gradient, channel.second}))
        return true;
  }
  return false;
}

Executor::Executor(const StageSchedules& schedules, int micro_batches, Boundary boundary,
                   Links links, machine::Device& device, machine::Device& host, Receives receives)
    : stage_(links.activations.rank()),
      placement_(schedules.placement),
      boundary_(boundary),
      links_(links),
      device_(device),
      streamed_(links.activations.stream() != nullptr),
      staging_(links.activations.stages(device)),
      receives_(receives) {
  SHARDMARK_CHECK(schedules.size(), ==, static_cast<std::size_t>(links.activations.size()));
  for (const machine::Link* link : {&links.activations, &links.gradients})
    if ((link->stream() != nullptr) != streamed_ ||
        (streamed_ && &link->stream()->device() != &device))
      throw std::invalid_argument(
          fmt::format("stage {}: the links of a pipeline must move memory of {}", stage_,
                      device.description()));
  const bool in_groups = links.activations.is_rendezvous();
  if (in_groups && receives == Receives::ahead)
    throw std::invalid_argument(
        fmt::format("stage {}: over {} messages move in groups between actions, so none is "
                    "received ahead",
                    stage_, name(links.activations.transport())));
  SHARDMARK_CHECK(links.gradients.rank(), ==, stage_);
  SHARDMARK_CHECK(host.readable_by_host(), ==, true);
  if (const Proof proof = prove(schedules, micro_batches); !proof)
    throw std::invalid_argument("this pipeline schedule cannot run: " + proof.fault);
  if (!in_groups && &links.activations == &links.gradients && needs_two_links(schedules))
    throw std::invalid_argument(
        "this pipeline schedule sends activations and gradients to the same stage; it needs a link "
        "for each");
  plan_ = schedules.of(stage_);

  const auto fill = [&](std::vector<Tensor>& tensors, std::size_t count, machine::Device& where,
                        Category category) {
    while (tensors.size() < count)
      tensors.emplace_back(where, boundary_.dtype, boundary_.shape, category);
  };
  const Slots slots = count_slots(schedules, stage_, receives_);
  fill(inputs_.slots, slots.inputs, device, Category::activations);
  fill(d_outputs_.slots, slots.d_outputs, device, Category::buffers);
  for (Pool* pool : {&inputs_, &d_outputs_}) pool->holders.resize(pool->slots.size());
  for (const auto& [channel, count] : slots.sends) {
    Outbox& box = outboxes_[channel];
    fill(box.slots, std::min<std::size_t>(outbox_slots, count), device, Category::buffers);
    box.numbers.resize(box.slots.size(), 0);
    box.ends.resize(box.slots.size());
    if (staging_) fill(box.staged, box.slots.size(), host, Category::buffers);
  }
  if (staging_ && slots.receives > 0)
    staged_in_ = Tensor(host, boundary_.dtype, boundary_.shape, Category::buffers);
  if (in_groups) exchanges_ = exchanges_of(schedules)[static_cast<std::size_t>(stage_)];
  if (receives_ == Receives::ahead && slots.receives > 0 &&
      links.activations.transport() == machine::Transport::shared_memory)
    worker_ = std::make_unique<machine::Worker>(
        true, machine::Worker::Recorded{"receives of the pipeline", machine::Part::bubble,
                                        links.activations.group().name.c_str()});
}

std::optional<Message> Executor::incoming(std::size_t position) const {
  if (position >= plan_.size()) return {};
  const auto message = receives(plan_[position], stage_, placement_);
  return message && message->peer != stage_ ? message : std::nullopt;
}

// Takes the message's slot. Later work does not use it until receive().
void Executor::receive_ahead(std::size_t position) {
  const auto message = incoming(position);
  if (!message) return;
  const Tensor& slot = pool(message->content).take(holder_of(*message));
  const Tensor& into = staging_ ? staged_in_ : slot;
  machine::Link& link = links_.of(message->content);
  if (worker_)
    worker_->submit([&link, peer = message->peer, data = into.data(), bytes = into.bytes()] {
      const machine::DuringMessage received(link.group().name);
      link.receive(peer, data, bytes);
    });
  else if (streamed_)
    slot_free_ = device_.stream().record();
  else
    link.start_receive(message->peer, into.data(), into.bytes());
}

void Executor::receive(const Message& message) {
  machine::Link& link = links_.of(message.content);
  const Tensor slot = pool(message.content).of(holder_of(message));
  const Tensor& into = staging_ ? staged_in_ : slot;
  if (worker_) {
    worker_->wait_all();
  } else {
    const auto free = std::exchange(slot_free_, nullptr);
    if (free && link.has_own_stream())
      link.stream()->wait(*free);
    else
      link.start_after_device();
    link.receive(message.peer, into.data(), into.bytes());
    link.end_before_device();
  }
  if (!staging_) return;
  device_.stream().copy(slot.data(), into.data(), into.bytes());
  device_.stream().synchronize();
}

// In a stream of its own, a send holds up no computation: only a receive is awaited, and the next
// use of a slot.
void Executor::exchange(const Exchange& exchange) {
  std::vector<machine::Transfer> transfers;
  std::vector<std::shared_ptr<machine::Event>*> sent_slots;
  for (const Message& message : exchange.sends) {
    Outbox& box = outbox(message);
    const Tensor& sent = box.slots[box.oldest];
    transfers.push_back({true, message.peer, sent.data(), sent.bytes()});
    sent_slots.push_back(&box.ends[box.oldest]);
    box.oldest = (box.oldest + 1) % box.slots.size();
  }
  if (exchange.receive) {
    const Message& message = *exchange.receive;
    const Tensor& into = pool(message.content).take(holder_of(message));
    transfers.push_back({false, message.peer, into.data(), into.bytes()});
  }
  machine::Link& link = links_.activations;
  link.start_after_device();
  link.exchange(transfers);
  if (exchange.receive) return link.end_before_device();
  if (!link.has_own_stream()) return;
  const std::shared_ptr<machine::Event> end = link.stream()->record();
  for (std::shared_ptr<machine::Event>* slot : sent_slots) *slot = end;
}

// A stage may send several times while it waits for the message of its action.
void Executor::exchange_before(std::size_t position) {
  for (const Exchange& one : exchanges_[position])
    timed(one.receive ? Doing::receive : Doing::outbox, plan_[std::min(position, plan_.size() - 1)],
          [&] { exchange(one); });
}

Tensor Executor::open_slot(const Message& message) {
  Outbox& box = outbox(message);
  if (exchanges_.empty() && box.numbers[box.next] != 0) {
    machine::Link& link = links_.of(message.content);
    link.wait_sent(message.peer, box.numbers[box.next]);
    link.end_before_device();
  }
  if (const auto end = std::exchange(box.ends[box.next], nullptr)) device_.stream().wait(*end);
  return box.slots[box.next];
}

void Executor::send(const Message& message) {
  Outbox& box = outbox(message);
  const Tensor* outgoing = &box.slots[box.next];
  if (staging_) {
    device_.stream().copy(box.staged[box.next].data(), outgoing->data(), outgoing->bytes());
    device_.stream().synchronize();
    outgoing = &box.staged[box.next];
  }
  if (exchanges_.empty()) {
    machine::Link& link = links_.of(message.content);
    link.start_after_device();
    box.numbers[box.next] = link.send(message.peer, outgoing->data(), outgoing->bytes());
  }
  box.next = (box.next + 1) % box.slots.size();
}

void Executor::compute(const Stage& stage, const Action& action, const Tensor& out) const {
  const Tensor input = inputs_.of(action), d_output = d_outputs_.of(action);
  switch (action.kind) {
    case Kind::forward:
      stage.forward(action, input, out);
      break;
    case Kind::backward:
      stage.backward(action, input, d_output, out);
      break;
    case Kind::backward_input:
      stage.backward_input(action, input, d_output, out);
      break;
    case Kind::backward_weights:
      stage.backward_weights(action, input, d_output);
      break;
  }
  if (staging_) device_.stream().synchronize();  // completes the data to send, and the timed work
}

template <class Work>
void Executor::timed(Doing doing, const Action& action, const Work& work) {
  const double start_s = machine::steady_s() - timeline_.origin_s;
  const bool queues = streamed_ && times_ == Times::measured;
  Queued queued{doing, action, queues ? device_.stream().record() : nullptr, nullptr};
  if (doing == Doing::compute) {
    const machine::During computing(part_of(action.kind));
    work();
  } else {
    const machine::DuringMessage message(links_.activations.group().name);
    work();
  }
  if (queues) {
    queued.end = device_.stream().record();
    queued_.push_back(std::move(queued));
  } else if (times_ == Times::none) {
    timeline_.events.push_back({doing, action, 0, 0});
  } else {
    timeline_.events.push_back({doing, action, start_s, machine::steady_s() - timeline_.origin_s});
  }
}

void Executor::run(const Stage& stage, Times times) {
  times_ = times;
  for (const Action& action : plan_) {
    const bool given[] = {bool(stage.forward), bool(stage.backward_input),
                          bool(stage.backward_weights), bool(stage.backward)};
    if (!given[static_cast<std::size_t>(action.kind)])
      throw std::invalid_argument(
          fmt::format("stage {}: no callable for {} of the schedule", stage_, text(action)));
  }
  for (Pool* pool : {&inputs_, &d_outputs_}) std::ranges::fill(pool->holders, std::nullopt);
  for (machine::Link* link : {&links_.activations, &links_.gradients})
    link->count_as({machine::Operation::send_receive, boundary_.dtype});
  queued_.clear();
  timeline_ = {};
  timeline_.events.reserve(3 * plan_.size());
  timeline_.origin_s = machine::steady_s();
  const std::string& group = links_.activations.group().name;

  int in_flight = 0;
  for (std::size_t i = 0; i < plan_.size(); ++i) {
    const Action& action = plan_[i];
    if (!exchanges_.empty()) {
      exchange_before(i);
    } else {
      const auto message = incoming(i);
      if (receives_ == Receives::ahead && i == 0) receive_ahead(0);
      if (receives_ == Receives::when_needed && message)
        pool(message->content).take(holder_of(*message));
      if (message) timed(Doing::receive, action, [&] { receive(*message); });
      if (receives_ == Receives::ahead) receive_ahead(i + 1);
    }
    const auto outgoing = sends(action, stage_, placement_);
    const bool leaves = outgoing && outgoing->peer != stage_;
    Tensor out;
    if (leaves) timed(Doing::outbox, action, [&] { out = open_slot(*outgoing); });
    if (outgoing && !leaves) out = pool(outgoing->content).take(holder_of(*outgoing));
    if (action.kind == Kind::forward)
      timeline_.peak_in_flight = std::max(timeline_.peak_in_flight, ++in_flight);
    timed(Doing::compute, action, [&] { compute(stage, action, out); });
    if (leaves) {
      const machine::DuringMessage message(group);
      send(*outgoing);
    }
    if (ends_micro_batch(action.kind)) {
      inputs_.release(action);
      d_outputs_.release(action);
      --in_flight;
    }
  }
  if (links_.activations.size() == 1) return;
  if (!exchanges_.empty()) {
    exchange_before(plan_.size());  // no message is left
    links_.activations.end_before_device();
    for (auto& [channel, box] : outboxes_) std::ranges::fill(box.ends, nullptr);
    return;
  }
  const machine::DuringMessage message(group);
  links_.activations.flush();
  if (&links_.gradients != &links_.activations) links_.gradients.flush();
  for (machine::Link* link : {&links_.activations, &links_.gradients}) link->end_before_device();
}

const Timeline& Executor::timeline() {
  if (queued_.empty()) return timeline_;
  // The device's clock has another zero. One moment that both clocks know relates the two.
  const std::unique_ptr<machine::Event> now = device_.stream().record();
  now->synchronize();
  const double now_s = machine::steady_s() - timeline_.origin_s;
  for (const Queued& queued : queued_)
    timeline_.events.push_back({queued.doing, queued.action,
                                now_s - now->seconds_since(*queued.start),
                                now_s - now->seconds_since(*queued.end)});
  queued_.clear();
  return timeline_;
}

ExpectedMemory expected_memory(const StageSchedules& schedules, int stage, const Boundary& boundary,
                               Receives receives) {
  const Slots slots = count_slots(schedules, stage, receives);
  return {slots.inputs * boundary.bytes(),
          (slots.d_outputs + slots.sent(outbox_slots)) * boundary.bytes()};
}

machine::Traffic expected_traffic(const StageSchedules& schedules, int stage,
                                  const Boundary& boundary) {
  const Slots slots = count_slots(schedules, stage, Receives::when_needed);
  const std::uint64_t sent = slots.sent();
  return {sent * boundary.bytes(), sent, slots.receives * boundary.bytes(), slots.receives};
}

}  // namespace pipeline

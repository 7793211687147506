#include "pipeline/execute.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "machine/device/clock.h"
#include "machine/device/error.h"
#include "pipeline/prove.h"

namespace pipeline {
namespace {

using machine::Category;
using machine::Tensor;

bool ends_micro_batch(Kind kind) {
  return kind == Kind::backward || kind == Kind::backward_weights;
}

// Boundaries that one stage needs at once.
struct Slots {
  std::size_t inputs = 0, d_outputs = 0;
  std::size_t sends[2] = {0, 0};  // in one step, by content
  std::size_t receives = 0;
  std::size_t outbox(Content content) const {
    return std::min<std::size_t>(outbox_slots, sends[static_cast<std::size_t>(content)]);
  }
};

Slots count_slots(const StageSchedule& schedule, int stage, int stages, int chunks) {
  Slots slots;
  std::size_t inputs = 0, d_outputs = 0;
  for (const Action& action : schedule) {
    if (const auto message = receives(action, stage, stages, chunks)) {
      std::size_t& held = message->content == Content::activation ? inputs : d_outputs;
      std::size_t& peak = message->content == Content::activation ? slots.inputs : slots.d_outputs;
      peak = std::max(peak, ++held);
      ++slots.receives;
    }
    if (const auto message = sends(action, stage, stages, chunks)) {
      ++slots.sends[static_cast<std::size_t>(message->content)];
    }
    if (ends_micro_batch(action.kind)) {
      inputs -=
          receives(forward(action.micro_batch, action.chunk), stage, stages, chunks).has_value();
      d_outputs -=
          receives(backward(action.micro_batch, action.chunk), stage, stages, chunks).has_value();
    }
  }
  return slots;
}

const StageSchedule& of_stage(const StageSchedules& schedules, int stage) {
  return schedules.at(static_cast<std::size_t>(stage));
}

bool same_micro_batch(const Action& a, const Action& b) {
  return a.micro_batch == b.micro_batch && a.chunk == b.chunk;
}

}  // namespace

const Tensor& Executor::Pool::take(const Action& action) {
  const auto free = std::find(used.begin(), used.end(), false);
  SHARDMARK_CHECK(free != used.end(), ==, true);
  const auto index = static_cast<std::size_t>(free - used.begin());
  used[index] = true;
  holder[index] = action;
  return slots[index];
}

std::size_t Executor::Pool::find(const Action& action) const {
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (used[i] && same_micro_batch(holder[i], action)) return i;
  }
  return slots.size();
}

Tensor Executor::Pool::of(const Action& action) const {
  const std::size_t index = find(action);
  return index < slots.size() ? slots[index] : Tensor();
}

void Executor::Pool::release(const Action& action) {
  if (const std::size_t index = find(action); index < slots.size()) used[index] = false;
}

Executor::Executor(const Schedule& schedule, int micro_batches, Boundary boundary,
                   machine::Link& link, machine::Device& device, machine::Device& host)
    : Executor(all_stages(schedule, link.size(), micro_batches), micro_batches, boundary, link,
               device, host) {}

Executor::Executor(const StageSchedules& schedules, int micro_batches, Boundary boundary,
                   machine::Link& link, machine::Device& device, machine::Device& host)
    : stage_(link.rank()),
      stages_(link.size()),
      chunks_(num_chunks(schedules)),
      boundary_(boundary),
      link_(link),
      device_(device),
      staging_(!device.readable_by_host()) {
  SHARDMARK_CHECK(schedules.size(), ==, static_cast<std::size_t>(stages_));
  SHARDMARK_CHECK(host.readable_by_host(), ==, true);
  if (const Proof proof = prove(schedules, micro_batches); !proof) {
    throw std::invalid_argument("this pipeline schedule cannot run: " + proof.fault);
  }
  plan_ = of_stage(schedules, stage_);

  const auto fill = [&](std::vector<Tensor>& tensors, std::size_t count, machine::Device& where,
                        Category category) {
    while (tensors.size() < count)
      tensors.emplace_back(where, boundary_.dtype, boundary_.shape, category);
  };
  const Slots slots = count_slots(plan_, stage_, stages_, chunks_);
  fill(inputs_.slots, slots.inputs, device, Category::activations);
  fill(d_outputs_.slots, slots.d_outputs, device, Category::buffers);
  for (Pool* pool : {&inputs_, &d_outputs_}) {
    pool->holder.resize(pool->slots.size());
    pool->used.resize(pool->slots.size(), false);
  }
  for (Content content : {Content::activation, Content::gradient}) {
    Outbox& box = outbox(content);
    fill(box.slots, slots.outbox(content), device, Category::buffers);
    box.numbers.resize(box.slots.size(), 0);
    if (staging_) fill(box.staged, box.slots.size(), host, Category::buffers);
  }
  if (staging_ && slots.receives > 0) {
    staged_in_ = Tensor(host, boundary_.dtype, boundary_.shape, Category::buffers);
  }
}

void Executor::receive(const Message& message, const Tensor& into) {
  if (!staging_) return link_.receive(message.peer, into.data(), into.bytes());
  link_.receive(message.peer, staged_in_.data(), staged_in_.bytes());
  device_.stream().copy(into.data(), staged_in_.data(), into.bytes());
  device_.stream().synchronize();
}

Tensor Executor::open_slot(const Message& message) {
  Outbox& box = outbox(message.content);
  if (box.numbers[box.next] != 0) link_.wait_sent(message.peer, box.numbers[box.next]);
  return box.slots[box.next];
}

void Executor::send(const Message& message) {
  Outbox& box = outbox(message.content);
  const Tensor* outgoing = &box.slots[box.next];
  if (staging_) {
    device_.stream().copy(box.staged[box.next].data(), outgoing->data(), outgoing->bytes());
    device_.stream().synchronize();
    outgoing = &box.staged[box.next];
  }
  box.numbers[box.next] = link_.send(message.peer, outgoing->data(), outgoing->bytes());
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
  device_.stream().synchronize();  // what is sent must be there, and the times must be of the work
}

Timeline Executor::run(const Stage& stage) {
  for (const Action& action : plan_) {
    const bool given[] = {bool(stage.forward), bool(stage.backward_input),
                          bool(stage.backward_weights), bool(stage.backward)};
    if (!given[static_cast<std::size_t>(action.kind)]) {
      throw std::invalid_argument(fmt::format(
          "stage {}: the schedule has {}, the stage no callable for it", stage_, text(action)));
    }
  }
  for (Pool* pool : {&inputs_, &d_outputs_}) std::fill(pool->used.begin(), pool->used.end(), false);
  link_.count_as({machine::Operation::send_receive, boundary_.dtype});
  Timeline timeline;
  timeline.events.reserve(3 * plan_.size());
  timeline.origin_s = machine::steady_s();
  const auto timed = [&](Doing doing, const Action& action, auto&& work) {
    const double start_s = machine::steady_s() - timeline.origin_s;
    work();
    timeline.events.push_back({doing, action, start_s, machine::steady_s() - timeline.origin_s});
  };

  int in_flight = 0;
  for (const Action& action : plan_) {
    if (const auto message = receives(action, stage_, stages_, chunks_)) {
      Pool& pool = message->content == Content::activation ? inputs_ : d_outputs_;
      timed(Doing::receive, action, [&] { receive(*message, pool.take(action)); });
    }
    const auto outgoing = sends(action, stage_, stages_, chunks_);
    Tensor out;
    if (outgoing) timed(Doing::outbox, action, [&] { out = open_slot(*outgoing); });
    if (action.kind == Kind::forward)
      timeline.peak_in_flight = std::max(timeline.peak_in_flight, ++in_flight);
    timed(Doing::compute, action, [&] { compute(stage, action, out); });
    if (outgoing) send(*outgoing);
    if (ends_micro_batch(action.kind)) {
      inputs_.release(action);
      d_outputs_.release(action);
      --in_flight;
    }
  }
  link_.flush();
  return timeline;
}

ExpectedMemory expected_memory(const StageSchedules& schedules, int stage,
                               const Boundary& boundary) {
  const Slots slots = count_slots(of_stage(schedules, stage), stage,
                                  static_cast<int>(schedules.size()), num_chunks(schedules));
  const std::size_t buffers =
      slots.d_outputs + slots.outbox(Content::activation) + slots.outbox(Content::gradient);
  return {slots.inputs * boundary.bytes(), buffers * boundary.bytes()};
}

machine::Traffic expected_traffic(const StageSchedules& schedules, int stage,
                                  const Boundary& boundary) {
  const Slots slots = count_slots(of_stage(schedules, stage), stage,
                                  static_cast<int>(schedules.size()), num_chunks(schedules));
  const std::uint64_t sent = slots.sends[0] + slots.sends[1];
  return {sent * boundary.bytes(), sent, slots.receives * boundary.bytes(), slots.receives};
}

}  // namespace pipeline

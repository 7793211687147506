#include "pipeline/simulate.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "pipeline/messages.h"

namespace pipeline {
namespace {

std::string describe(const Message& message) {
  return fmt::format("the {} of micro-batch {}{}",
                     message.content == Content::activation ? "activation" : "gradient",
                     message.micro_batch,
                     message.part > 0 ? fmt::format(" for part {}", message.part) : "");
}

struct Sent {
  Message message;
  std::size_t position;  // of the sending action
  double arrives_s;
  double taken_s;  // by the receiver; -1: still in its slot
};

struct Channel {
  std::vector<Sent> sent;
  std::size_t taken = 0;
};

struct StageState {
  std::size_t position = 0;
  bool received = false;  // the message of the action at position
  double time_s = 0;
  double first_start_s = -1;  // of the first action
};

class Walk {
 public:
  Walk(const StageSchedules& schedules, const std::vector<Costs>& costs, bool timelines)
      : schedules_(schedules),
        costs_(costs),
        timelines_(timelines),
        stages_(static_cast<int>(schedules.size())),
        states_(schedules.size()),
        channels_(2 * schedules.size() * schedules.size()) {
    result_.stages.resize(schedules.size());
    result_.busy_s.resize(schedules.size());
  }

  Simulation run() {
    for (bool moved = true; moved && !result_.fault;) {
      moved = false;
      for (int stage = 0; stage < stages_ && !result_.fault; ++stage)
        while (!result_.fault && advance(stage)) moved = true;
    }
    if (!result_.fault) find_deadlock();
    if (!result_.fault) find_unreceived();
    for (const StageState& stage : states_) {
      result_.makespan_s = std::max(result_.makespan_s, stage.time_s);
      if (stage.first_start_s >= 0)
        result_.span_s = std::max(result_.span_s, stage.time_s - stage.first_start_s);
    }
    return std::move(result_);
  }

 private:
  const StageSchedule& schedule(int stage) const { return schedules_[stage]; }
  StageState& state(int stage) { return states_[stage]; }
  Channel& channel(Content content, int from, int to) {
    return channels_[(static_cast<int>(content) * stages_ + from) * stages_ + to];
  }

  // Runs one step of a stage, if possible: the receive of its next action, or the rest of the
  // action.
  bool advance(int stage) {
    StageState& me = state(stage);
    if (me.position == schedule(stage).size()) return false;
    const Action& action = schedule(stage)[me.position];
    return me.received ? compute(stage, me, action) : receive(stage, me, action);
  }

  bool receive(int stage, StageState& me, const Action& action) {
    if (const auto wanted = receives(action, stage, schedules_.placement)) {
      Channel& from = channel(wanted->content, wanted->peer, stage);
      if (from.taken == from.sent.size()) return false;
      Sent& front = from.sent[from.taken];
      if (front.message.micro_batch != wanted->micro_batch || front.message.part != wanted->part) {
        result_.fault =
            Fault{stage, me.position,
                  fmt::format("{} receives {} from stage {}, which sent {} first", text(action),
                              describe(*wanted), wanted->peer, describe(front.message))};
        return false;
      }
      ++from.taken;
      wait(stage, Doing::receive, action, front.arrives_s);
      front.taken_s = me.time_s;
    }
    me.received = true;
    return true;
  }

  bool compute(int stage, StageState& me, const Action& action) {
    const auto message = sends(action, stage, schedules_.placement);
    Channel* const to = message ? &channel(message->content, stage, message->peer) : nullptr;
    const bool leaves = message && message->peer != stage;
    if (leaves && to->sent.size() >= outbox_slots) {
      const double free_s = to->sent[to->sent.size() - outbox_slots].taken_s;
      if (free_s < 0) return false;
      wait(stage, Doing::outbox, action, free_s);
    }
    const Costs& costs = costs_[stage];
    const double seconds = costs.of(action.kind);
    if (me.first_start_s < 0) me.first_start_s = me.time_s;
    result_.busy_s[stage] += seconds;
    spend(stage, Doing::compute, action, me.time_s + seconds);
    if (message)
      to->sent.push_back({*message, me.position, me.time_s + (leaves ? costs.transfer : 0), -1});
    ++me.position;
    me.received = false;
    return true;
  }

  void wait(int stage, Doing doing, const Action& action, double until_s) {
    if (until_s > state(stage).time_s) spend(stage, doing, action, until_s);
  }

  void spend(int stage, Doing doing, const Action& action, double until_s) {
    StageState& me = state(stage);
    if (timelines_) result_.stages[stage].push_back({doing, action, me.time_s, until_s});
    me.time_s = until_s;
  }

  void find_deadlock() {
    std::string waits;
    std::optional<Fault> first;
    for (int stage = 0; stage < stages_; ++stage) {
      const StageState& me = state(stage);
      if (me.position == schedule(stage).size()) continue;
      const Action& action = schedule(stage)[me.position];
      const auto wanted = receives(action, stage, schedules_.placement);
      const auto message = sends(action, stage, schedules_.placement);
      waits += me.received
                   ? fmt::format("; stage {} at {} for stage {} to receive an earlier message",
                                 stage, text(action), message->peer)
                   : fmt::format("; stage {} at {} for {} from stage {}", stage, text(action),
                                 describe(*wanted), wanted->peer);
      if (!first) first = Fault{stage, me.position, {}};
    }
    if (!first) return;
    first->what = "deadlock, waiting:" + waits.substr(1);
    result_.fault = first;
  }

  void find_unreceived() {
    for (std::size_t i = 0; i < channels_.size(); ++i) {
      const Channel& left = channels_[i];
      if (left.taken == left.sent.size()) continue;
      const Sent& sent = left.sent[left.taken];
      const int from = static_cast<int>(i) / stages_ % stages_;
      result_.fault = Fault{
          from, sent.position,
          fmt::format("stage {} never receives {}", sent.message.peer, describe(sent.message))};
      return;
    }
  }

  const StageSchedules& schedules_;
  const std::vector<Costs>& costs_;
  bool timelines_;
  int stages_;
  std::vector<StageState> states_;
  std::vector<Channel> channels_;  // [content][from][to]
  Simulation result_;
};

}  // namespace

std::string draw(const StageSchedules& schedules, const std::optional<Fault>& fault) {
  std::size_t width = 0;
  for (const StageSchedule& schedule : schedules)
    for (const Action& action : schedule) width = std::max(width, text(action).size());
  std::string out;
  for (std::size_t stage = 0; stage < schedules.size(); ++stage) {
    out += fmt::format("stage {:2} |", stage);
    const bool faulty = fault && fault->stage == static_cast<int>(stage);
    for (std::size_t i = 0; i < schedules[stage].size(); ++i) {
      const bool bad = faulty && fault->position == i;
      out += fmt::format("{}{:{}}{}", bad ? '>' : ' ', text(schedules[stage][i]), width,
                         bad ? '<' : ' ');
    }
    if (faulty && fault->position >= schedules[stage].size()) out += ">?<";
    while (out.back() == ' ') out.pop_back();
    out += '\n';
  }
  if (fault) out += fmt::format("stage {}: {}\n", fault->stage, fault->what);
  return out;
}

Simulation simulate_or_fault(const StageSchedules& schedules, const std::vector<Costs>& costs,
                             bool timelines) {
  if (costs.size() != schedules.size())
    throw std::invalid_argument(fmt::format(
        "costs are given for {} stages, but the schedule has {}", costs.size(), schedules.size()));
  return Walk(schedules, costs, timelines).run();
}

Simulation simulate(const StageSchedules& schedules, const std::vector<Costs>& costs) {
  Simulation simulation = simulate_or_fault(schedules, costs);
  if (simulation.fault)
    throw std::invalid_argument("this schedule cannot run:\n" + draw(schedules, simulation.fault));
  return simulation;
}

Simulation simulate(const Schedule& schedule, const Size& size, const Costs& costs) {
  return simulate(all_stages(schedule, size), std::vector<Costs>(size.stages, costs));
}

}  // namespace pipeline

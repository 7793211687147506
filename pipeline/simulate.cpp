#include "pipeline/simulate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <stdexcept>

#include "pipeline/messages.h"

namespace pipeline {
namespace {

std::string describe(const Message& message) {
  return fmt::format("the {} of micro-batch {}{}",
                     message.content == Content::activation ? "activation" : "gradient",
                     message.micro_batch,
                     message.depth > 0 ? fmt::format(" for part {}", message.depth) : "");
}

struct Sent {
  Message message;
  std::size_t position;  // of the action that sent it
  std::size_t number;    // among its sender's messages of that content
  double arrives_s;
};

struct Channel {
  std::vector<Sent> sent;
  std::size_t taken = 0;
};

struct StageState {
  std::size_t position = 0;
  bool received = false;  // what the action at position needs
  double time_s = 0;
  // For each content: when the receiver took each message sent, or -1 while it lies in its slot.
  std::array<std::vector<double>, 2> taken_s;
};

class Walk {
 public:
  Walk(const StageSchedules& schedules, const std::vector<Costs>& costs)
      : schedules_(schedules),
        costs_(costs),
        stages_(static_cast<int>(schedules.size())),
        chunks_(num_chunks(schedules)),
        states_(schedules.size()),
        channels_(schedules.size() * schedules.size()) {
    result_.stages.resize(schedules.size());
    result_.busy_s.resize(schedules.size());
    for (std::size_t i = 0; i < schedules.size(); ++i) {
      result_.stages[i].reserve(2 * schedules[i].size());
      for (auto& taken_s : states_[i].taken_s) taken_s.reserve(schedules[i].size());
    }
  }

  Simulation run() {
    bool moved = true;
    while (moved && !result_.fault) {
      moved = false;
      for (int stage = 0; stage < stages_ && !result_.fault; ++stage) {
        while (!result_.fault && advance(stage)) moved = true;
      }
    }
    if (!result_.fault) find_deadlock();
    if (!result_.fault) find_unreceived();
    for (std::size_t stage = 0; stage < states_.size(); ++stage) {
      result_.makespan_s = std::max(result_.makespan_s, states_[stage].time_s);
      result_.busy_s[stage] = pipeline::busy_s(result_.stages[stage]);
    }
    return std::move(result_);
  }

 private:
  const StageSchedule& schedule(int stage) const {
    return schedules_[static_cast<std::size_t>(stage)];
  }
  StageState& state(int stage) { return states_[static_cast<std::size_t>(stage)]; }
  Channel& channel(int from, int to) {
    return channels_[static_cast<std::size_t>(from * stages_ + to)];
  }

  // One step of a stage, if it can make one: the receive of its next action, or the rest of it.
  bool advance(int stage) {
    StageState& me = state(stage);
    if (me.position == schedule(stage).size()) return false;
    const Action& action = schedule(stage)[me.position];
    return me.received ? compute(stage, me, action) : receive(stage, me, action);
  }

  bool receive(int stage, StageState& me, const Action& action) {
    if (const auto wanted = receives(action, stage, stages_, chunks_)) {
      Channel& from = channel(wanted->peer, stage);
      if (from.taken == from.sent.size()) return false;
      const Sent& front = from.sent[from.taken];
      if (front.message.content != wanted->content ||
          front.message.micro_batch != wanted->micro_batch ||
          front.message.depth != wanted->depth) {
        result_.fault =
            Fault{stage, me.position,
                  fmt::format("{} receives {} from stage {}, which sent {} first", text(action),
                              describe(*wanted), wanted->peer, describe(front.message))};
        return false;
      }
      ++from.taken;
      wait(stage, Doing::receive, action, front.arrives_s);
      state(wanted->peer).taken_s[static_cast<std::size_t>(wanted->content)][front.number] =
          me.time_s;
    }
    me.received = true;
    return true;
  }

  bool compute(int stage, StageState& me, const Action& action) {
    const auto message = sends(action, stage, stages_, chunks_);
    if (message) {
      const auto& taken_s = me.taken_s[static_cast<std::size_t>(message->content)];
      if (taken_s.size() >= outbox_slots) {
        const double free_s = taken_s[taken_s.size() - outbox_slots];
        if (free_s < 0) return false;
        wait(stage, Doing::outbox, action, free_s);
      }
    }
    const Costs& costs = costs_[static_cast<std::size_t>(stage)];
    const double start_s = me.time_s;
    me.time_s += costs.of(action.kind);
    result_.stages[static_cast<std::size_t>(stage)].push_back(
        {Doing::compute, action, start_s, me.time_s});
    if (message) {
      auto& taken_s = me.taken_s[static_cast<std::size_t>(message->content)];
      channel(stage, message->peer)
          .sent.push_back({*message, me.position, taken_s.size(), me.time_s + costs.transfer});
      taken_s.push_back(-1);
    }
    ++me.position;
    me.received = false;
    return true;
  }

  void wait(int stage, Doing doing, const Action& action, double until_s) {
    StageState& me = state(stage);
    if (until_s <= me.time_s) return;
    result_.stages[static_cast<std::size_t>(stage)].push_back({doing, action, me.time_s, until_s});
    me.time_s = until_s;
  }

  void find_deadlock() {
    std::string waits;
    std::optional<Fault> first;
    for (int stage = 0; stage < stages_; ++stage) {
      const StageState& me = state(stage);
      if (me.position == schedule(stage).size()) continue;
      const Action& action = schedule(stage)[me.position];
      const auto wanted = receives(action, stage, stages_, chunks_);
      const auto message = sends(action, stage, stages_, chunks_);
      waits += me.received
                   ? fmt::format("; stage {} at {} for stage {} to take what it sent before", stage,
                                 text(action), message->peer)
                   : fmt::format("; stage {} at {} for {} from stage {}", stage, text(action),
                                 describe(*wanted), wanted->peer);
      if (!first) first = Fault{stage, me.position, {}};
    }
    if (!first) return;
    first->what = "deadlock, waiting:" + waits.substr(1);
    result_.fault = first;
  }

  void find_unreceived() {
    for (int from = 0; from < stages_; ++from) {
      for (int to = 0; to < stages_; ++to) {
        const Channel& left = channel(from, to);
        if (left.taken == left.sent.size()) continue;
        const Sent& sent = left.sent[left.taken];
        result_.fault =
            Fault{from, sent.position,
                  fmt::format("stage {} never receives {}", to, describe(sent.message))};
        return;
      }
    }
  }

  const StageSchedules& schedules_;
  const std::vector<Costs>& costs_;
  int stages_, chunks_;
  std::vector<StageState> states_;
  std::vector<Channel> channels_;  // [from * stages + to]
  Simulation result_;
};

}  // namespace

std::string draw(const StageSchedules& schedules, const std::optional<Fault>& fault) {
  std::size_t width = 0;
  for (const StageSchedule& schedule : schedules) {
    for (const Action& action : schedule) width = std::max(width, text(action).size());
  }
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

Simulation simulate_or_fault(const StageSchedules& schedules, const std::vector<Costs>& costs) {
  if (costs.size() != schedules.size()) {
    throw std::invalid_argument(fmt::format("costs of {} stages given for a schedule of {}",
                                            costs.size(), schedules.size()));
  }
  if (schedules.size() == 1 && num_chunks(schedules) > 1) {
    throw std::invalid_argument("chunks need at least two stages to alternate between");
  }
  return Walk(schedules, costs).run();
}

Simulation simulate(const StageSchedules& schedules, const std::vector<Costs>& costs) {
  Simulation simulation = simulate_or_fault(schedules, costs);
  if (simulation.fault)
    throw std::invalid_argument("this schedule cannot run:\n" + draw(schedules, simulation.fault));
  return simulation;
}

Simulation simulate(const Schedule& schedule, int stages, int micro_batches, const Costs& costs) {
  return simulate(all_stages(schedule, stages, micro_batches),
                  std::vector<Costs>(static_cast<std::size_t>(stages), costs));
}

}  // namespace pipeline

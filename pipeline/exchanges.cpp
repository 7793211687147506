#include "pipeline/exchanges.h"

#include <cstddef>
#include <deque>
#include <map>
#include <stdexcept>
#include <utility>

namespace pipeline {
namespace {

struct StageState {
  std::size_t position = 0;
  bool received = false;  // the message of the action at position
  std::map<std::pair<Content, int>, std::deque<Message>> unsent;  // by content and receiver
};

class Rounds {
 public:
  explicit Rounds(const StageSchedules& schedules)
      : schedules_(schedules), states_(schedules.size()), result_(schedules.size()) {
    for (std::size_t stage = 0; stage < schedules.size(); ++stage)
      result_[stage].resize(schedules[stage].size() + 1);
  }

  std::vector<StageExchanges> run() {
    bool moved = true;
    while (moved) {
      moved = false;
      for (int stage = 0; stage < stages(); ++stage) moved |= act(stage);
      moved |= exchange();
    }
    for (int stage = 0; stage < stages(); ++stage)
      if (next(stage)) throw std::logic_error("the schedules of a pipeline deadlock");
    return std::move(result_);
  }

 private:
  int stages() const { return static_cast<int>(states_.size()); }
  StageState& state(int stage) { return states_[static_cast<std::size_t>(stage)]; }
  const Action* next(int stage) {
    const StageSchedule& schedule = schedules_.of(stage);
    const std::size_t position = state(stage).position;
    return position < schedule.size() ? &schedule[position] : nullptr;
  }
  // Returns the message that the stage's next action waits for, or empty.
  std::optional<Message> awaited(int stage) {
    const Action* action = next(stage);
    if (!action || state(stage).received) return {};
    const auto message = receives(*action, stage, schedules_.placement);
    return message && message->peer != stage ? message : std::nullopt;
  }

  // Runs the stage's next action, if possible.
  bool act(int stage) {
    const Action* action = next(stage);
    if (!action || awaited(stage)) return false;
    StageState& me = state(stage);
    const auto message = sends(*action, stage, schedules_.placement);
    if (message && message->peer != stage) {
      std::deque<Message>& channel = me.unsent[{message->content, message->peer}];
      if (channel.size() >= static_cast<std::size_t>(outbox_slots)) return false;
      channel.push_back(*message);
    }
    ++me.position;
    me.received = false;
    return true;
  }

  // Moves the messages that stages wait for.
  bool exchange() {
    std::vector<Exchange> round(states_.size());
    for (int stage = 0; stage < stages(); ++stage) {
      const std::optional<Message> message = awaited(stage);
      if (!message) continue;
      std::deque<Message>& channel = state(message->peer).unsent[{message->content, stage}];
      if (channel.empty()) continue;
      round[static_cast<std::size_t>(message->peer)].sends.push_back(channel.front());
      channel.pop_front();
      round[static_cast<std::size_t>(stage)].receive = message;
    }
    bool any = false;
    for (int stage = 0; stage < stages(); ++stage) {
      Exchange& mine = round[static_cast<std::size_t>(stage)];
      if (mine.receive) state(stage).received = true;
      if (mine.sends.empty() && !mine.receive) continue;
      result_[static_cast<std::size_t>(stage)][state(stage).position].push_back(std::move(mine));
      any = true;
    }
    return any;
  }

  const StageSchedules& schedules_;
  std::vector<StageState> states_;
  std::vector<StageExchanges> result_;
};

// "F0" for an activation, "B0" for a gradient; with the receiver's chunk.
std::string text(const Message& message) {
  const bool forwards = message.content == Content::activation;
  return text(
      Action{forwards ? Kind::forward : Kind::backward, message.micro_batch, message.chunk});
}

}  // namespace

std::vector<StageExchanges> exchanges_of(const StageSchedules& schedules) {
  return Rounds(schedules).run();
}

std::string text(const StageSchedule& schedule, const StageExchanges& exchanges) {
  std::string out;
  const auto add = [&out](const std::string& word) { out += (out.empty() ? "" : " ") + word; };
  for (std::size_t i = 0; i < exchanges.size(); ++i) {
    for (const Exchange& exchange : exchanges[i]) {
      std::string words;
      for (const Message& message : exchange.sends)
        words += (words.empty() ? ">" : " >") + text(message);
      if (exchange.receive) words += (words.empty() ? "<" : " <") + text(*exchange.receive);
      add("(" + words + ")");
    }
    if (i < schedule.size()) add(text(schedule[i]));
  }
  return out;
}

}  // namespace pipeline

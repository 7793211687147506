#pragma once
// The search for the rounds of one rank (rounds.h).

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "collectives/layout.h"
#include "collectives/range_map.h"
#include "collectives/rounds.h"

namespace collectives {

inline bool moves(Verb verb) {
  return verb == Verb::send || verb == Verb::receive || verb == Verb::receive_reduce;
}

// The dependencies between a plan's steps. If a step waits for another step, it does not repeat
// that step's dependencies.
class StepOrder {
 public:
  StepOrder(machine::Operation operation, const Plan& plan, const Layout& layout)
      : is_barrier_(operation == machine::Operation::barrier), before_(plan.steps.size()) {
    add(plan, layout, false);
    if (may_be_in_place(operation)) add(plan, layout, true);
  }
  // Returns the earlier steps that must complete before the step.
  const std::set<std::size_t>& before(std::size_t step) const { return before_[step]; }

 private:
  struct Uses {  // of a piece of a buffer
    std::optional<std::size_t> writer;
    std::vector<std::size_t> readers;  // since the last write
  };

  void add(const Plan& plan, const Layout& layout, bool in_place) {
    RangeMap<Uses> uses;
    std::vector<std::size_t> heard;  // earlier receives of a barrier
    for (std::size_t i = 0; i < plan.steps.size(); ++i) {
      const Step& step = plan.steps[i];
      std::set<std::size_t>& before = before_[i];
      const Layout::Site source = layout.site(step.source, in_place);
      const Layout::Site target = layout.site(step.target, in_place);
      if (step.verb == Verb::copy && source == target) continue;  // no rank runs it
      const auto read = [&](const Layout::Site& site) {
        uses.update(site, [&](Uses& piece) {
          if (piece.writer) before.insert(*piece.writer);
          piece.readers.push_back(i);
        });
      };
      if (step.verb != Verb::receive && step.verb != Verb::post) read(source);
      if (step.verb == Verb::reduce) read(target);
      if (step.verb != Verb::send && step.verb != Verb::post) {
        uses.visit(target, [&](const Uses& piece) {
          if (piece.writer) before.insert(*piece.writer);
          before.insert(piece.readers.begin(), piece.readers.end());
        });
        uses.assign(target, {i, {}});
      }
      // A barrier's messages have no data, so its sends wait for all earlier receives.
      if (is_barrier_ && step.verb == Verb::send) before.insert(heard.begin(), heard.end());
      if (step.verb == Verb::receive) heard.push_back(i);
      before.erase(i);
    }
  }

  bool is_barrier_;
  std::vector<std::set<std::size_t>> before_;
};

// The search of one rank through its plan. It searches the plan in place, because a step of the
// other one may write to the output while a peer still reads it as input. Both plans have the same
// steps, so the rounds hold for both.
class RoundSearch {
 public:
  RoundSearch(const Algorithm& algorithm, const Call& call, std::int64_t count)
      : plan_(algorithm.plan(in_place(call))),
        order_(algorithm.operation, plan_,
               Layout(algorithm.operation, plan_, call,
                      algorithm.operation == machine::Operation::barrier ? 0 : count)),
        round_(plan_.steps.size()) {}

  // Continues until the plan ends (returns true) or a number has not arrived (returns false).
  bool go_on(Agreement& agreement) {
    for (; next_ < plan_.steps.size(); ++next_, is_told_ = false)
      if (!take(next_, agreement)) return false;
    for (auto& [index, peer] : peers_)
      while (!peer.sends.empty())
        if (!settle_send(index, agreement)) return false;
    return true;
  }

  std::vector<Round> rounds() const {
    std::map<int, Round> rounds;
    for (std::size_t i = 0; i < plan_.steps.size(); ++i) {
      const Verb verb = plan_.steps[i].verb;
      if (verb == Verb::post) continue;
      Round& round = rounds[round_[i]];
      if (moves(verb)) round.transfers.push_back(i);
      if (!moves(verb) || verb == Verb::receive_reduce) round.then.push_back(i);
    }
    std::vector<Round> result;
    for (auto& [number, round] : rounds) result.push_back(std::move(round));
    return result;
  }

  std::string waits_at() const {
    if (next_ == plan_.steps.size()) return "the end";
    return fmt::format("step {} ({})", next_, text(plan_.steps[next_]));
  }

 private:
  static Call in_place(Call call) {
    call.in_place = true;
    return call;
  }
  struct Peer {
    std::deque<std::size_t> sends;                    // steps whose round is not known
    std::deque<int> told_of_sends, told_of_receives;  // received, of the peer's ends
    int last_sent = 0, last_received = 0;             // rounds
  };

  bool take(std::size_t step, Agreement& agreement) {
    const Verb verb = plan_.steps[step].verb;
    const int index = plan_.steps[step].peer;
    if (verb == Verb::post) return true;
    int over = 0;  // the round after which all its dependencies are complete
    for (const std::size_t earlier : order_.before(step)) {
      if (plan_.steps[earlier].verb == Verb::send)
        while (round_[earlier] <= 0)
          if (!settle_send(plan_.steps[earlier].peer, agreement)) return false;
      over = std::max(over, round_[earlier]);
    }
    if (!moves(verb)) {
      round_[step] = over;
      return true;
    }
    Peer& peer = peers_[index];
    // No channel of a proved plan holds more messages.
    while (verb == Verb::send && peer.sends.size() >= max_outstanding)
      if (!settle_send(index, agreement)) return false;
    if (!std::exchange(is_told_, true)) agreement.send(index, {verb == Verb::send, over + 1});
    if (verb == Verb::send) {
      round_[step] = -(over + 1);
      peer.sends.push_back(step);
      return true;
    }
    const std::optional<int> theirs = told(index, peer.told_of_sends, agreement);
    if (!theirs) return false;
    round_[step] = peer.last_received = std::max({over + 1, *theirs, peer.last_received});
    return true;
  }

  // Finds the round of the first send to the peer whose round is not known.
  bool settle_send(int index, Agreement& agreement) {
    Peer& peer = peers_[index];
    const std::optional<int> theirs = told(index, peer.told_of_receives, agreement);
    if (!theirs) return false;
    int& round = round_[peer.sends.front()];
    round = peer.last_sent = std::max({-round, *theirs, peer.last_sent});
    peer.sends.pop_front();
    return true;
  }

  std::optional<int> told(int index, std::deque<int>& wanted, Agreement& agreement) {
    Peer& peer = peers_[index];
    while (wanted.empty()) {
      const std::optional<Agreement::Number> number = agreement.receive(index);
      if (!number) return std::nullopt;
      (number->sends ? peer.told_of_sends : peer.told_of_receives).push_back(number->round);
    }
    const int round = wanted.front();
    wanted.pop_front();
    return round;
  }

  Plan plan_;
  StepOrder order_;
  std::vector<int> round_;  // by step; of a send: negative until its receive is known
  std::map<int, Peer> peers_;
  std::size_t next_ = 0;
  bool is_told_ = false;  // whether the peer has this rank's number of the next step
};

}  // namespace collectives

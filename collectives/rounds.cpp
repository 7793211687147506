#include "collectives/rounds.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <stdexcept>
#include <utility>

#include "collectives/execute.h"
#include "collectives/layout.h"

namespace collectives {
namespace {

bool moves(Verb verb) {
  return verb == Verb::send || verb == Verb::receive || verb == Verb::receive_reduce;
}

// One rank's steps and which of them wait for which.
class Rank {
 public:
  Rank(const Algorithm& algorithm, const Call& call, std::int64_t count, bool in_place)
      : plan_(algorithm.plan(call)), done_(plan_.steps.size()) {
    const Layout layout(algorithm.operation, plan_, call, count);
    std::vector<Uses> uses;
    for (std::size_t i = 0; i < plan_.steps.size(); ++i) {
      const Step& step = plan_.steps[i];
      Uses mine;
      if (step.verb != Verb::receive && step.verb != Verb::post)
        mine.reads.push_back(layout.site(step.source, in_place));
      if (step.verb == Verb::reduce) mine.reads.push_back(layout.site(step.target, in_place));
      if (step.verb != Verb::send && step.verb != Verb::post)
        mine.writes.push_back(layout.site(step.target, in_place));
      std::vector<std::size_t>& before = after_.emplace_back();
      for (std::size_t earlier = 0; earlier < i; ++earlier) {
        // What a barrier moves has no place; who answers has heard.
        const bool hears = algorithm.operation == machine::Operation::barrier &&
                           step.verb == Verb::send && plan_.steps[earlier].verb == Verb::receive;
        if (hears || uses[earlier].hold_up(mine)) before.push_back(earlier);
      }
      uses.push_back(std::move(mine));
      if (step.verb == Verb::post) done_[i] = true;
      if (step.verb == Verb::send) sends_[step.peer].push_back(i);
      if (step.verb == Verb::receive || step.verb == Verb::receive_reduce)
        receives_[step.peer].push_back(i);
    }
  }

  const Plan& plan() const { return plan_; }
  const std::vector<std::size_t>& sends(int peer) { return sends_[peer]; }
  const std::vector<std::size_t>& receives(int peer) { return receives_[peer]; }
  bool ready(std::size_t step) const {
    return std::ranges::all_of(after_[step], [this](std::size_t before) { return done_[before]; });
  }
  // Ends a round: its transfers, then what the rank can do by itself.
  void end(Round round) {
    std::ranges::sort(round.transfers);
    for (const std::size_t step : round.transfers) {
      done_[step] = true;
      if (plan_.steps[step].verb == Verb::receive_reduce) round.then.push_back(step);
    }
    for (std::size_t step = 0; step < done_.size(); ++step) {
      if (done_[step] || moves(plan_.steps[step].verb) || !ready(step)) continue;
      done_[step] = true;
      round.then.push_back(step);
    }
    std::ranges::sort(round.then);
    if (!round.transfers.empty() || !round.then.empty()) rounds_.push_back(std::move(round));
  }
  std::vector<Round> take() {
    for (std::size_t step = 0; step < done_.size(); ++step)
      if (!done_[step])
        throw std::logic_error(
            fmt::format("no round comes for step {} ({})", step, text(plan_.steps[step])));
    return std::move(rounds_);
  }

 private:
  struct Uses {
    std::vector<Layout::Site> reads, writes;
    bool hold_up(const Uses& later) const {
      const auto meet = [](const auto& some, const auto& others) {
        for (const Layout::Site& one : some)
          for (const Layout::Site& other : others)
            if (one.overlaps(other)) return true;
        return false;
      };
      return meet(writes, later.reads) || meet(reads, later.writes) || meet(writes, later.writes);
    }
  };

  Plan plan_;
  std::vector<bool> done_;
  std::vector<std::vector<std::size_t>> after_;               // by step: those that it waits for
  std::map<int, std::vector<std::size_t>> sends_, receives_;  // by peer, in order
  std::vector<Round> rounds_;
};

}  // namespace

std::vector<std::vector<Round>> rounds_of_ranks(const Algorithm& algorithm, const Call& call,
                                                std::int64_t count, bool in_place) {
  if (algorithm.operation == machine::Operation::barrier) count = 0;
  const int ranks = call.ranks;
  std::vector<Rank> all;
  for (int rank = 0; rank < ranks; ++rank) {
    Call own = call;
    own.rank = rank;
    all.emplace_back(algorithm, own, count, in_place).end({});
  }
  std::map<std::pair<int, int>, std::size_t> moved;  // messages, by sender and receiver
  for (bool any = true; any;) {
    any = false;
    std::vector<Round> next(static_cast<std::size_t>(ranks));
    for (int from = 0; from < ranks; ++from)
      for (int to = 0; to < ranks; ++to) {
        Rank& sender = all[static_cast<std::size_t>(from)];
        Rank& receiver = all[static_cast<std::size_t>(to)];
        const auto& sends = sender.sends(to);
        const auto& receives = receiver.receives(from);
        std::size_t& number = moved[{from, to}];
        for (; number < std::min(sends.size(), receives.size()); ++number) {
          if (!sender.ready(sends[number]) || !receiver.ready(receives[number])) break;
          next[static_cast<std::size_t>(from)].transfers.push_back(sends[number]);
          next[static_cast<std::size_t>(to)].transfers.push_back(receives[number]);
          any = true;
        }
      }
    for (int rank = 0; any && rank < ranks; ++rank)
      all[static_cast<std::size_t>(rank)].end(std::move(next[static_cast<std::size_t>(rank)]));
  }
  std::vector<std::vector<Round>> result;
  for (Rank& rank : all) result.push_back(rank.take());
  return result;
}

std::vector<Round> rounds_of(const Algorithm& algorithm, const Call& call, std::int64_t count,
                             bool in_place) {
  return rounds_of_ranks(algorithm, call, count, in_place)[static_cast<std::size_t>(call.rank)];
}

std::size_t staging_bytes(const Algorithm& algorithm, const Call& call, std::int64_t count,
                          machine::Dtype dtype, bool in_place) {
  const Call cut = with_pieces(algorithm, call, count, dtype);
  const Plan plan = algorithm.plan(cut);
  const Layout layout(algorithm.operation, plan, cut, count);
  std::size_t most = 0;
  for (const Round& round : rounds_of(algorithm, cut, count, in_place)) {
    std::size_t staged = 0;
    for (const std::size_t i : round.transfers)
      if (plan.steps[i].verb == Verb::receive_reduce)
        staged +=
            staged_bytes(static_cast<std::size_t>(layout.elements(plan.steps[i].target).size()) *
                         size_of(dtype));
    most = std::max(most, staged);
  }
  return most;
}

}  // namespace collectives

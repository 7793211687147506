#include "collectives/rounds.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <utility>

#include "collectives/execute.h"
#include "collectives/layout.h"
#include "collectives/range_map.h"

namespace collectives {
namespace {

bool moves(Verb verb) {
  return verb == Verb::send || verb == Verb::receive || verb == Verb::receive_reduce;
}

// One rank's steps, which of them wait for which, and the rounds that they have come to.
class Rank {
 public:
  Rank(const Algorithm& algorithm, const Call& call, std::int64_t count, bool in_place)
      : plan_(algorithm.plan(call)),
        waits_for_(plan_.steps.size()),
        held_up_(plan_.steps.size()),
        channel_(plan_.steps.size()) {
    const Layout layout(algorithm.operation, plan_, call, count);
    const bool is_barrier = algorithm.operation == machine::Operation::barrier;
    RangeMap<Uses> uses;
    std::vector<std::size_t> received;  // of a barrier
    for (std::size_t i = 0; i < plan_.steps.size(); ++i) {
      const Step& step = plan_.steps[i];
      std::set<std::size_t> before;
      const auto read = [&](Slice slice) {
        uses.update(layout.site(slice, in_place), [&](Uses& piece) {
          if (piece.writer) before.insert(*piece.writer);
          piece.readers.push_back(i);
        });
      };
      if (step.verb != Verb::receive && step.verb != Verb::post) read(step.source);
      if (step.verb == Verb::reduce) read(step.target);
      if (step.verb != Verb::send && step.verb != Verb::post) {
        const Layout::Site target = layout.site(step.target, in_place);
        uses.visit(target, [&](const Uses& piece) {
          if (piece.writer) before.insert(*piece.writer);
          before.insert(piece.readers.begin(), piece.readers.end());
        });
        uses.assign(target, {i, {}});
      }
      // What a barrier moves has no place; a rank that answers has heard.
      if (is_barrier && step.verb == Verb::send) before.insert(received.begin(), received.end());
      if (is_barrier && step.verb == Verb::receive) received.push_back(i);
      before.erase(i);
      waits_for_[i] = before.size();
      for (const std::size_t earlier : before) held_up_[earlier].push_back(i);
    }
  }

  const Plan& plan() const { return plan_; }
  bool ready(std::size_t step) const { return waits_for_[step] == 0; }
  std::size_t& channel(std::size_t step) { return channel_[step]; }
  // Appends the channels of transfers that have become ready.
  void begin(std::vector<std::size_t>& channels) {
    for (std::size_t step = 0; step < plan_.steps.size(); ++step)
      if (ready(step)) reached(step, channels);
    end({}, channels);
  }
  // Ends a round: its transfers, then what the rank can do without others.
  void end(std::vector<std::size_t> transfers, std::vector<std::size_t>& channels) {
    std::ranges::sort(transfers);
    for (const std::size_t step : transfers) {
      if (plan_.steps[step].verb == Verb::receive_reduce) then_.push_back(step);
      done(step, channels);
    }
    std::ranges::sort(then_);
    if (!transfers.empty() || !then_.empty())
      rounds_.push_back({std::move(transfers), std::exchange(then_, {})});
  }
  std::vector<Round> take() {
    for (std::size_t step = 0; step < plan_.steps.size(); ++step)
      if (plan_.steps[step].verb != Verb::post && !done_[step])
        throw std::logic_error(
            fmt::format("no round comes for step {} ({})", step, text(plan_.steps[step])));
    return std::move(rounds_);
  }

 private:
  // Of a piece of a buffer: the last step that wrote it, and those that have read it since.
  struct Uses {
    std::optional<std::size_t> writer;
    std::vector<std::size_t> readers;
  };

  void reached(std::size_t step, std::vector<std::size_t>& channels) {
    const Verb verb = plan_.steps[step].verb;
    if (verb == Verb::post || done_[step]) return;
    if (moves(verb)) {
      channels.push_back(channel_[step]);
    } else {
      then_.push_back(step);
      done(step, channels);
    }
  }
  void done(std::size_t step, std::vector<std::size_t>& channels) {
    done_[step] = true;
    for (const std::size_t later : held_up_[step])
      if (--waits_for_[later] == 0) reached(later, channels);
  }

  Plan plan_;
  std::vector<std::size_t> waits_for_;             // by step: how many others
  std::vector<std::vector<std::size_t>> held_up_;  // by step: those that wait for it
  std::vector<std::size_t> channel_;               // by step that moves
  std::vector<bool> done_ = std::vector<bool>(plan_.steps.size());
  std::vector<std::size_t> then_;  // of the round that ends
  std::vector<Round> rounds_;
};

struct Channel {
  int from, to;
  std::vector<std::size_t> sends = {}, receives = {};  // steps of its ends, in order
  std::size_t moved = 0;                               // messages
};

std::vector<Channel> channels_of(std::vector<Rank>& ranks) {
  std::vector<Channel> channels;
  std::map<std::pair<int, int>, std::size_t> index;
  for (int rank = 0; rank < static_cast<int>(ranks.size()); ++rank) {
    Rank& own = ranks[static_cast<std::size_t>(rank)];
    const std::vector<Step>& steps = own.plan().steps;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      if (!moves(steps[i].verb)) continue;
      const bool sends = steps[i].verb == Verb::send;
      const auto ends = sends ? std::pair(rank, steps[i].peer) : std::pair(steps[i].peer, rank);
      const auto [known, is_new] = index.try_emplace(ends, channels.size());
      if (is_new) channels.push_back({ends.first, ends.second});
      Channel& channel = channels[own.channel(i) = known->second];
      (sends ? channel.sends : channel.receives).push_back(i);
    }
  }
  return channels;
}

}  // namespace

// Looks at a channel only when one of its ends has become ready, so that all rounds cost about as
// much as all steps.
std::vector<std::vector<Round>> rounds_of_ranks(const Algorithm& algorithm, const Call& call,
                                                std::int64_t count, bool in_place) {
  if (algorithm.operation == machine::Operation::barrier) count = 0;
  std::vector<Rank> ranks;
  for (int rank = 0; rank < call.ranks; ++rank) {
    Call own = call;
    own.rank = rank;
    ranks.emplace_back(algorithm, own, count, in_place);
  }
  std::vector<Channel> channels = channels_of(ranks);
  std::vector<std::size_t> ready;
  for (Rank& rank : ranks) rank.begin(ready);
  while (!ready.empty()) {
    std::map<int, std::vector<std::size_t>> transfers;  // by rank
    for (const std::size_t index : std::exchange(ready, {})) {
      Channel& channel = channels[index];
      const Rank& from = ranks[static_cast<std::size_t>(channel.from)];
      const Rank& to = ranks[static_cast<std::size_t>(channel.to)];
      const std::size_t messages = std::min(channel.sends.size(), channel.receives.size());
      for (std::size_t& number = channel.moved; number < messages; ++number) {
        if (!from.ready(channel.sends[number]) || !to.ready(channel.receives[number])) break;
        transfers[channel.from].push_back(channel.sends[number]);
        transfers[channel.to].push_back(channel.receives[number]);
      }
    }
    for (auto& [rank, moved] : transfers)
      ranks[static_cast<std::size_t>(rank)].end(std::move(moved), ready);
  }
  std::vector<std::vector<Round>> result;
  for (Rank& rank : ranks) result.push_back(rank.take());
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

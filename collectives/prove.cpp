#include "collectives/prove.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "collectives/joined_sum.h"
#include "collectives/layout.h"

namespace collectives {
namespace {

// A chunk's content: its number in the whole, the ranks that contributed, and a hash of the order
// of the additions. Addition commutes, bit for bit, so the hash does not depend on the order of two
// operands.
struct Value {
  bool written = false;
  int chunk = -1;
  std::uint64_t ranks = 0;
  std::uint64_t order = 0;
};

std::uint64_t mix(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

struct Message {
  int receiver;
  Slice source;
  std::vector<Value> at_send;
  std::uint64_t knows = 0;  // ranks that the sender knows to have entered
};

// A place that a rank has posted and not yet received. Message `number` of the peer may already be
// there.
struct Posted {
  int peer;
  std::uint64_t number;
  Slice target;
};

class Machine {
 public:
  Machine(const Algorithm& algorithm, const Call& call, std::int64_t count, bool in_place)
      : algorithm_(algorithm), ranks_(call.ranks), root_(call.root), in_place_(in_place) {
    proof_.volumes.resize(ranks_);
    for (int rank = 0; rank < ranks_; ++rank) {
      Call own = call;
      own.rank = rank;
      own.in_place = in_place;
      const Plan plan = algorithm.plan(own);
      const bool is_barrier = algorithm.operation == machine::Operation::barrier;
      states_.push_back({plan, Layout(algorithm.operation, plan, own, is_barrier ? 0 : count),
                         extents(algorithm.operation, own), std::uint64_t{1} << rank});
      load(rank);
      if (plan.shares != of(0).plan.shares || plan.pieces != of(0).plan.pieces)
        throw ProofError(
            fmt::format("{} of {} ranks: rank {} splits the data differently from rank 0",
                        algorithm.name, ranks_, rank));
      if (plan.bays > algorithm.bays(own))
        throw ProofError(fmt::format("{} of {} ranks: rank {} uses {} bays; expected at most {}",
                                     algorithm.name, ranks_, rank, plan.bays, algorithm.bays(own)));
    }
  }

  Proof run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (int rank = 0; rank < ranks_; ++rank)
        while (next(rank) < plan(rank).steps.size() && step(rank)) {
          ++next(rank);
          moved = true;
        }
    }
    for (int rank = 0; rank < ranks_; ++rank)
      if (next(rank) < plan(rank).steps.size()) wrong(rank, "waits forever");
    for (int rank = 0; rank < ranks_; ++rank)
      for (const Message& message : of(rank).outstanding)
        throw ProofError(fmt::format("{} of {} ranks: rank {} never receives a message of rank {}",
                                     algorithm_.name, ranks_, message.receiver, rank));
    for (int rank = 0; rank < ranks_; ++rank) check_result(rank);
    return proof_;
  }

 private:
  using Memory = std::array<std::vector<Value>, 3>;  // of each Buffer

  struct State {  // of a rank
    Plan plan;
    Layout layout;
    Extents extents;
    std::uint64_t knows;  // ranks that it knows to have entered
    std::size_t next = 0;
    Memory memory{};
    std::vector<Slice> runs{};           // by bay: the run that was written there
    std::vector<Message> outstanding{};  // sent by it, in order
    std::vector<Posted> posted{};
    std::vector<std::uint64_t> sent{}, taken{};  // counts of its messages, by receiver
  };

  State& of(int rank) { return states_[rank]; }
  Plan& plan(int rank) { return of(rank).plan; }
  std::size_t& next(int rank) { return of(rank).next; }

  // In place, one buffer is input and output, and the smaller of the two is the own share of the
  // larger.
  std::pair<Buffer, int> place(int rank, Buffer buffer, int chunk) {
    if (!in_place_ || buffer == Buffer::scratch) return {buffer, chunk};
    const Extents both = of(rank).extents;
    const auto [own, other] = buffer == Buffer::input ? std::pair{both.input, both.output}
                                                      : std::pair{both.output, both.input};
    const bool within = own == Extent::own_share && other == Extent::whole;
    return {Buffer::input, within ? rank * plan(rank).pieces + chunk : chunk};
  }
  Value& at(int rank, Buffer buffer, int chunk) {
    const auto [held, index] = place(rank, buffer, chunk);
    std::vector<Value>& values = of(rank).memory[static_cast<std::size_t>(held)];
    if (index < 0 || static_cast<std::size_t>(index) >= values.size())
      throw ProofError(fmt::format(
          "{} of {} ranks: rank {} has no chunk {} of its {}", algorithm_.name, ranks_, rank, chunk,
          std::array{"input", "output", "scratch"}[static_cast<std::size_t>(buffer)]));
    return values[index];
  }

  int chunks(int rank, Extent extent) {
    const Plan& own = plan(rank);
    return extent == Extent::none        ? 0
           : extent == Extent::own_share ? own.pieces
                                         : own.shares * own.pieces;
  }
  void load(int rank) {
    const Extent extent = of(rank).extents.input;
    const std::size_t inputs = chunks(rank, extent),
                      outputs = chunks(rank, of(rank).extents.output);
    const std::size_t bays = plan(rank).bays;
    of(rank).memory = {std::vector<Value>(in_place_ ? std::max(inputs, outputs) : inputs),
                       std::vector<Value>(in_place_ ? 0 : outputs), std::vector<Value>(bays)};
    of(rank).runs.resize(bays);
    of(rank).sent.resize(ranks_);
    of(rank).taken.resize(ranks_);
    const int first = extent == Extent::own_share ? rank * plan(rank).pieces : 0;
    for (int chunk = 0; chunk < chunks(rank, extent); ++chunk)
      at(rank, Buffer::input, chunk) = {true, first + chunk, std::uint64_t{1} << rank,
                                        mix(static_cast<std::uint64_t>(rank) + 1)};
  }

  [[noreturn]] void wrong(int rank, const std::string& what) {
    throw ProofError(fmt::format("{} of {} ranks{}: rank {}, step {} ({}): {}", algorithm_.name,
                                 ranks_, in_place_ ? " in place" : "", rank, next(rank),
                                 text(plan(rank).steps[next(rank)]), what));
  }

  // Returns whether each chunk of a run has its own bay. Then any part of a run is a run.
  bool chunks_fill_bays(int rank) {
    return deals_in_shares(algorithm_.operation) && plan(rank).pieces == 1;
  }

  std::vector<Value> read(int rank, Slice slice) {
    std::vector<Value> values;
    for (int i = 0; i < slice.count; ++i) {
      values.push_back(at(rank, slice.buffer, slice.first + i));
      if (!values.back().written) wrong(rank, "reads a chunk that was not written");
      if (slice.buffer == Buffer::scratch && !chunks_fill_bays(rank) &&
          of(rank).runs[slice.first + i] != slice)
        wrong(rank, "reads a bay as another run than the written one");
    }
    return values;
  }

  Value sum(int rank, const Value& a, const Value& b) {
    if (a.chunk != b.chunk) wrong(rank, fmt::format("adds chunk {} to chunk {}", b.chunk, a.chunk));
    if (a.ranks & b.ranks) wrong(rank, "counts a contribution twice");
    return {true, a.chunk, a.ranks | b.ranks, mix(mix(a.order + b.order) ^ (a.order ^ b.order))};
  }

  bool overlaps(int rank, Slice a, Slice b) {
    const auto [buffer_a, first_a] = place(rank, a.buffer, a.first);
    const auto [buffer_b, first_b] = place(rank, b.buffer, b.first);
    return buffer_a == buffer_b && first_a < first_b + b.count && first_b < first_a + a.count;
  }
  // Returns false while a message that the write overwrites is not read. The executor also waits.
  bool may_write(int rank, Slice target) {
    for (const Message& message : of(rank).outstanding)
      if (overlaps(rank, message.source, target)) return false;
    return true;
  }

  // Returns the number of messages from the peer up to the message of the post. The executor counts
  // in the same way.
  std::uint64_t messages_until_received(int rank) {
    const std::vector<Step>& steps = plan(rank).steps;
    const Step& now = steps[next(rank)];
    std::uint64_t ahead = 0;
    for (std::size_t i = next(rank) + 1; i < steps.size(); ++i) {
      if (steps[i].peer != now.peer) continue;
      if (steps[i].verb == Verb::receive || steps[i].verb == Verb::receive_reduce) ++ahead;
      if (steps[i].verb == Verb::receive && steps[i].target == now.target) return ahead;
    }
    wrong(rank, "posts a place that it does not receive into");
  }
  bool post(int rank, int peer, Slice target) {
    const std::uint64_t ahead = messages_until_received(rank);
    if (ahead > max_outstanding) wrong(rank, "posts further ahead than the capacity of a channel");
    // The peer reads its own messages before it writes. deliver() checks this.
    for (const Message& message : of(rank).outstanding)
      if (message.receiver != peer && overlaps(rank, message.source, target)) return false;
    leave_alone(rank, target, -1);
    of(rank).posted.push_back({peer, of(peer).taken[rank] + ahead, target});
    return true;
  }
  // A place belongs to the peer from its post until it is received, except for sends to that peer.
  void leave_alone(int rank, Slice slice, int sending_to) {
    for (const Posted& posted : of(rank).posted)
      if (overlaps(rank, posted.target, slice) &&
          (posted.peer != sending_to || of(posted.peer).sent[rank] >= posted.number))
        wrong(rank, "uses a chunk that it has posted");
  }
  // A message with a posted place may arrive there as soon as it is sent.
  void deliver(int rank, int peer, const std::vector<Value>& values) {
    for (const Posted& posted : of(peer).posted) {
      if (posted.peer != rank || posted.number != of(rank).sent[peer]) continue;
      for (const Message& message : of(peer).outstanding)
        if (overlaps(peer, message.source, posted.target))
          wrong(rank, fmt::format("overwrites data that rank {} has not read", message.receiver));
      write(peer, posted.target, values);
    }
  }
  void take(int rank, int peer, Slice target) {
    const std::uint64_t number = ++of(peer).taken[rank];
    std::erase_if(of(rank).posted, [&](const Posted& posted) {
      return posted.peer == peer && posted.number == number && posted.target == target;
    });
  }

  // The executor takes no message of a joined sum before all have arrived.
  bool joined_messages_are_here(int rank) {
    const JoinedSum sum = joined_sum(plan(rank), next(rank));
    return std::ranges::all_of(sum.summands, [&](const Summand& summand) {
      return summand.peer < 0 ||
             std::ranges::any_of(of(summand.peer).outstanding,
                                 [&](const Message& message) { return message.receiver == rank; });
    });
  }

  std::int64_t elements(int rank, Slice slice) { return of(rank).layout.elements(slice).size(); }

  bool step(int rank) {
    const Step& now = plan(rank).steps[next(rank)];
    switch (now.verb) {
      case Verb::send: {
        std::vector<Message>& outstanding = of(rank).outstanding;
        if (std::count_if(outstanding.begin(), outstanding.end(), [&](const Message& message) {
              return message.receiver == now.peer;
            }) >= max_outstanding)
          return false;
        leave_alone(rank, now.source, now.peer);
        outstanding.push_back({now.peer, now.source, read(rank, now.source), of(rank).knows});
        ++of(rank).sent[now.peer];
        deliver(rank, now.peer, outstanding.back().at_send);
        proof_.volumes[rank] += {elements(rank, now.source), 1, 0, 0};
        return true;
      }
      case Verb::post:
        return post(rank, now.peer, now.target);
      case Verb::receive:
      case Verb::receive_reduce: {
        std::vector<Message>& outstanding = of(now.peer).outstanding;
        const auto first =
            std::find_if(outstanding.begin(), outstanding.end(),
                         [&](const Message& message) { return message.receiver == rank; });
        if (first == outstanding.end() || !may_write(rank, now.target)) return false;
        if (!joined_messages_are_here(rank)) return false;
        const Message message = std::move(*first);
        outstanding.erase(first);
        of(rank).knows |= message.knows;
        take(rank, now.peer, now.target);
        leave_alone(rank, now.target, -1);
        if (message.source.count != now.target.count)
          wrong(rank, "receives another number of chunks than was sent");
        if (elements(now.peer, message.source) != elements(rank, now.target))
          wrong(rank, "receives another number of elements than was sent");
        proof_.volumes[rank] += {0, 0, elements(rank, now.target), 1};
        std::vector<Value> values = message.at_send;
        for (int i = 0; i < message.source.count; ++i) {
          const Value& late = at(now.peer, message.source.buffer, message.source.first + i);
          if (late.order != values[i].order) wrong(rank, "the sender has overwritten it");
        }
        if (now.verb == Verb::receive_reduce) {
          leave_alone(rank, now.source, -1);
          const std::vector<Value> own = read(rank, now.source);
          for (std::size_t i = 0; i < values.size(); ++i) values[i] = sum(rank, own[i], values[i]);
        }
        write(rank, now.target, values);
        return true;
      }
      case Verb::copy:
        if (place(rank, now.source.buffer, now.source.first) ==
            place(rank, now.target.buffer, now.target.first))
          return true;  // in place: no copy
        if (!may_write(rank, now.target)) return false;
        leave_alone(rank, now.source, -1);
        leave_alone(rank, now.target, -1);
        write(rank, now.target, read(rank, now.source));
        return true;
      case Verb::reduce: {
        if (!may_write(rank, now.target)) return false;
        leave_alone(rank, now.source, -1);
        leave_alone(rank, now.target, -1);
        std::vector<Value> values = read(rank, now.target);
        const std::vector<Value> own = read(rank, now.source);
        for (std::size_t i = 0; i < values.size(); ++i) values[i] = sum(rank, values[i], own[i]);
        write(rank, now.target, values);
        return true;
      }
    }
    return false;
  }

  void write(int rank, Slice target, const std::vector<Value>& values) {
    for (int i = 0; i < target.count; ++i) {
      if (target.buffer == Buffer::scratch) {
        if (target.first + target.count > plan(rank).bays) wrong(rank, "writes beyond its bays");
        of(rank).runs[target.first + i] = target;
      }
      at(rank, target.buffer, target.first + i) = values[i];
    }
  }

  // Returns the required value of a rank's output[chunk].
  Value wanted(int rank, int chunk) {
    using enum machine::Operation;
    const auto only = [](int whose) { return std::uint64_t{1} << whose; };
    const int pieces = plan(rank).pieces, own = rank * pieces;
    switch (algorithm_.operation) {
      case all_gather:
      case gather:
        return {true, chunk, only(chunk / pieces), 0};
      case reduce_scatter:
        return {true, own + chunk, everybody(), 0};
      case broadcast:
        return {true, chunk, only(root_), 0};
      case scatter:
        return {true, own + chunk, only(root_), 0};
      case all_to_all:
      case all_to_all_v:
        return {true, own + chunk % pieces, only(chunk / pieces), 0};
      case send_receive:
        return {true, chunk, only((rank + ranks_ - 1) % ranks_), 0};
      default:
        return {true, chunk, everybody(), 0};
    }
  }
  std::uint64_t everybody() const {
    return ranks_ == 64 ? ~0ull : (std::uint64_t{1} << ranks_) - 1;
  }
  void check_result(int rank) {
    using enum machine::Operation;
    const auto operation = algorithm_.operation;
    if (operation == barrier) {
      if (of(rank).knows != everybody())
        throw ProofError(fmt::format("{} of {} ranks: rank {} leaves without waiting for {:x}",
                                     algorithm_.name, ranks_, rank, everybody() & ~of(rank).knows));
      return;
    }
    const bool sums = operation == all_reduce || operation == reduce || operation == reduce_scatter;
    const int count = chunks(rank, of(rank).extents.output);
    for (int chunk = 0; chunk < count; ++chunk) {
      const Value& value = at(rank, Buffer::output, chunk);
      const Value right = wanted(rank, chunk);
      if (!value.written || value.chunk != right.chunk || value.ranks != right.ranks)
        throw ProofError(fmt::format(
            "{} of {} ranks: rank {} ends with output[{}] = chunk {} of ranks {:x}, not chunk {} "
            "of {:x}",
            algorithm_.name, ranks_, rank, chunk, value.chunk, value.ranks, right.chunk,
            right.ranks));
      if (sums) {
        if (first_order_ == 0) first_order_ = value.order;
        if (value.order != first_order_) proof_.one_order = false;
      }
      if (operation == all_reduce && value.order != at(0, Buffer::output, chunk).order)
        throw ProofError(
            fmt::format("{} of {} ranks: ranks 0 and {} add output[{}] in different orders",
                        algorithm_.name, ranks_, rank, chunk));
    }
  }

  const Algorithm& algorithm_;
  int ranks_, root_;
  bool in_place_;
  std::vector<State> states_;  // by rank
  std::uint64_t first_order_ = 0;
  Proof proof_;
};

}  // namespace

Proof prove(const Algorithm& algorithm, const Call& call, std::int64_t count, bool in_place) {
  return Machine(algorithm, call, count, in_place).run();
}

}  // namespace collectives

#include "collectives/prove.h"

#include <fmt/format.h>

#include <deque>
#include <map>
#include <utility>

namespace collectives {
namespace {

// A chunk's content: which chunk of the whole, whose contributions, and a hash of the order in
// which they were added. Addition commutes, bit for bit, so the hash of a sum does not depend on
// its sides.
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
  Slice source;
  std::vector<Value> at_send;
};

// What a rank has posted and not yet received: message `number` of a peer may be there already.
struct Posted {
  std::uint64_t number;
  Slice target;
};

class Machine {
 public:
  Machine(const Algorithm& algorithm, int ranks, int pieces, std::int64_t count, bool in_place)
      : algorithm_(algorithm), ranks_(ranks), count_(count), in_place_(in_place) {
    for (int rank = 0; rank < ranks; ++rank) {
      plans_.push_back(algorithm.plan(rank, ranks, pieces));
      load(rank);
    }
    next_.resize(static_cast<std::size_t>(ranks));
    proof_.sent_elements.resize(static_cast<std::size_t>(ranks));
    proof_.sent_messages.resize(static_cast<std::size_t>(ranks));
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
      for (const auto& [peer, messages] : sent_by_[rank])
        if (!messages.empty())
          throw ProofError(
              fmt::format("{} of {} ranks: rank {} never receives a message of rank {}",
                          algorithm_.name, ranks_, peer, rank));
    for (int rank = 0; rank < ranks_; ++rank) check_result(rank);
    return proof_;
  }

 private:
  using Memory = std::map<std::pair<Buffer, int>, Value>;

  Plan& plan(int rank) { return plans_[static_cast<std::size_t>(rank)]; }
  std::size_t& next(int rank) { return next_[static_cast<std::size_t>(rank)]; }

  // In place, the input of all_reduce is its output; the input of all_gather is the own share of
  // its output; the output of reduce_scatter is the own share of its input.
  std::pair<Buffer, int> place(int rank, Buffer buffer, int chunk) {
    const int pieces = plan(rank).pieces;
    if (!in_place_ || buffer == Buffer::scratch) return {buffer, chunk};
    switch (algorithm_.operation) {
      case machine::Operation::all_reduce:
        return {Buffer::output, chunk};
      case machine::Operation::all_gather:
        return {Buffer::output, buffer == Buffer::input ? rank * pieces + chunk : chunk};
      default:
        return {Buffer::input, buffer == Buffer::output ? rank * pieces + chunk : chunk};
    }
  }
  Value& at(int rank, Buffer buffer, int chunk) {
    return memory_[rank][place(rank, buffer, chunk)];
  }

  void load(int rank) {
    const Plan& own = plan(rank);
    const int first =
        algorithm_.operation == machine::Operation::all_gather ? rank * own.pieces : 0;
    for (int chunk = 0; chunk < own.input_shares * own.pieces; ++chunk)
      at(rank, Buffer::input, chunk) = {true, first + chunk, std::uint64_t{1} << rank,
                                        mix(static_cast<std::uint64_t>(rank) + 1)};
  }

  [[noreturn]] void wrong(int rank, const std::string& what) {
    throw ProofError(fmt::format("{} of {} ranks{}: rank {}, step {} ({}): {}", algorithm_.name,
                                 ranks_, in_place_ ? " in place" : "", rank, next(rank),
                                 text(plan(rank).steps[next(rank)]), what));
  }

  std::vector<Value> read(int rank, Slice slice) {
    std::vector<Value> values;
    for (int i = 0; i < slice.count; ++i) {
      values.push_back(at(rank, slice.buffer, slice.first + i));
      if (!values.back().written) wrong(rank, "reads a chunk that was not written");
    }
    return values;
  }

  Value sum(int rank, const Value& a, const Value& b) {
    if (a.chunk != b.chunk) wrong(rank, fmt::format("adds chunk {} to chunk {}", b.chunk, a.chunk));
    if (a.ranks & b.ranks) wrong(rank, "counts a contribution twice");
    return {true, a.chunk, a.ranks | b.ranks, mix(mix(a.order + b.order) ^ (a.order ^ b.order))};
  }

  bool overlaps(int rank, Slice a, Slice b) {
    for (int i = 0; i < a.count; ++i)
      for (int j = 0; j < b.count; ++j)
        if (place(rank, a.buffer, a.first + i) == place(rank, b.buffer, b.first + j)) return true;
    return false;
  }
  // A write waits, as the executor does, until nobody is still to read what it overwrites.
  bool may_write(int rank, Slice target) {
    for (const auto& [peer, messages] : sent_by_[rank])
      for (const Message& message : messages)
        if (overlaps(rank, message.source, target)) return false;
    return true;
  }

  // How many messages from its peer come until the one that is posted for; the executor counts
  // alike.
  std::uint64_t messages_until_received(int rank) {
    const std::vector<Step>& steps = plan(rank).steps;
    const Step& now = steps[next(rank)];
    std::uint64_t ahead = 0;
    for (std::size_t i = next(rank) + 1; i < steps.size(); ++i) {
      if (steps[i].peer != now.peer) continue;
      if (steps[i].verb == Verb::receive || steps[i].verb == Verb::receive_reduce) ++ahead;
      if (steps[i].verb == Verb::receive && steps[i].target == now.target) return ahead;
    }
    wrong(rank, "posts what it does not receive");
  }
  bool post(int rank, int peer, Slice target) {
    const std::uint64_t ahead = messages_until_received(rank);
    if (ahead > max_outstanding) wrong(rank, "posts further ahead than a channel reaches");
    // What the peer itself is still to read it reads before it writes: seen to in deliver().
    for (const auto& [other, messages] : sent_by_[rank])
      for (const Message& message : messages)
        if (other != peer && overlaps(rank, message.source, target)) return false;
    leave_alone(rank, target, -1);
    posted_[rank][peer].push_back({taken_[peer][rank] + ahead, target});
    return true;
  }
  // From its post until it is received, a place is its peer's, but for sends to that same peer.
  void leave_alone(int rank, Slice slice, int sending_to) {
    for (const auto& [peer, places] : posted_[rank])
      for (const Posted& posted : places)
        if (overlaps(rank, posted.target, slice) &&
            (peer != sending_to || sent_[peer][rank] >= posted.number))
          wrong(rank, "uses a chunk that it has posted");
  }
  // A message for which a place is posted may be there as soon as it is sent.
  void deliver(int rank, int peer, const std::vector<Value>& values) {
    for (const Posted& posted : posted_[peer][rank]) {
      if (posted.number != sent_[rank][peer]) continue;
      for (const auto& [reader, messages] : sent_by_[peer])
        for (const Message& message : messages)
          if (overlaps(peer, message.source, posted.target))
            wrong(rank, fmt::format("writes over what rank {} is still to read", reader));
      write(peer, posted.target, values);
    }
  }
  void take(int rank, int peer, Slice target) {
    const std::uint64_t number = ++taken_[peer][rank];
    std::erase_if(posted_[rank][peer], [&](const Posted& posted) {
      return posted.number == number && posted.target == target;
    });
  }

  std::int64_t elements(int rank, Slice slice) {
    const Plan& own = plan(rank);
    std::int64_t total = 0;
    for (int i = 0; i < slice.count; ++i) {
      const int chunk = slice.first + i;
      const int shares = slice.buffer == Buffer::input ? own.input_shares : own.output_shares;
      if (algorithm_.operation != machine::Operation::all_reduce)  // shares are equal
        total += part_of(count_, own.pieces, chunk % own.pieces).size();
      else
        total +=
            chunk_range(count_, slice.buffer == Buffer::scratch ? 1 : shares, own.pieces, chunk)
                .size();
    }
    return total;
  }

  bool step(int rank) {
    const Step& now = plan(rank).steps[next(rank)];
    switch (now.verb) {
      case Verb::send: {
        auto& channel = sent_by_[rank][now.peer];
        if (channel.size() >= max_outstanding) return false;
        leave_alone(rank, now.source, now.peer);
        channel.push_back({now.source, read(rank, now.source)});
        ++sent_[rank][now.peer];
        deliver(rank, now.peer, channel.back().at_send);
        proof_.sent_elements[static_cast<std::size_t>(rank)] += elements(rank, now.source);
        ++proof_.sent_messages[static_cast<std::size_t>(rank)];
        return true;
      }
      case Verb::post:
        return post(rank, now.peer, now.target);
      case Verb::receive:
      case Verb::receive_reduce: {
        auto& channel = sent_by_[now.peer][rank];
        if (channel.empty() || !may_write(rank, now.target)) return false;
        const Message message = channel.front();
        channel.pop_front();
        take(rank, now.peer, now.target);
        leave_alone(rank, now.target, -1);
        if (message.source.count != now.target.count)
          wrong(rank, "receives another number of chunks than was sent");
        std::vector<Value> values = message.at_send;
        for (int i = 0; i < message.source.count; ++i) {
          const Value& late = at(now.peer, message.source.buffer, message.source.first + i);
          if (late.order != values[static_cast<std::size_t>(i)].order)
            wrong(rank, "the sender has overwritten it");
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
          return true;  // in place: nothing to do
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
    for (int i = 0; i < target.count; ++i)
      at(rank, target.buffer, target.first + i) = values[static_cast<std::size_t>(i)];
  }

  void check_result(int rank) {
    const Plan& own = plan(rank);
    const std::uint64_t everybody = ranks_ == 64 ? ~0ull : (std::uint64_t{1} << ranks_) - 1;
    const bool gathered = algorithm_.operation == machine::Operation::all_gather;
    const bool scattered = algorithm_.operation == machine::Operation::reduce_scatter;
    for (int chunk = 0; chunk < own.output_shares * own.pieces; ++chunk) {
      const Value& value = at(rank, Buffer::output, chunk);
      const int wanted = scattered ? rank * own.pieces + chunk : chunk;
      const std::uint64_t whose = gathered ? std::uint64_t{1} << (chunk / own.pieces) : everybody;
      if (!value.written || value.chunk != wanted || value.ranks != whose)
        throw ProofError(fmt::format(
            "{} of {} ranks: rank {} ends with output[{}] = chunk {} of ranks {:x}, not chunk {} "
            "of {:x}",
            algorithm_.name, ranks_, rank, chunk, value.chunk, value.ranks, wanted, whose));
      if (!gathered && value.order != at(0, Buffer::output, 0).order) proof_.one_order = false;
      if (!scattered && value.order != at(0, Buffer::output, chunk).order)
        throw ProofError(
            fmt::format("{} of {} ranks: ranks 0 and {} add output[{}] in different orders",
                        algorithm_.name, ranks_, rank, chunk));
    }
  }

  const Algorithm& algorithm_;
  int ranks_;
  std::int64_t count_;
  bool in_place_;
  std::vector<Plan> plans_;
  std::vector<std::size_t> next_;
  std::map<int, Memory> memory_;
  std::map<int, std::map<int, std::deque<Message>>> sent_by_;  // sender -> receiver -> messages
  std::map<int, std::map<int, std::uint64_t>> sent_, taken_;   // sender -> receiver -> messages
  std::map<int, std::map<int, std::vector<Posted>>> posted_;   // receiver -> sender -> places
  Proof proof_;
};

}  // namespace

Proof prove(const Algorithm& algorithm, int ranks, int pieces, std::int64_t count, bool in_place) {
  return Machine(algorithm, ranks, pieces, count, in_place).run();
}

}  // namespace collectives

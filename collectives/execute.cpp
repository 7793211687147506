#include "collectives/execute.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <span>
#include <stdexcept>

#include "machine/world/binding.h"

namespace collectives {
namespace {

// Elements [begin, end) of one of the three buffers, and where that lies when buffers are shared.
struct Extent {
  Buffer buffer;
  ChunkRange range;
};

class Layout {
 public:
  Layout(const Plan& plan, const CallKey& key, int rank, int ranks)
      : plan_(plan), key_(key), rank_(rank), ranks_(ranks) {}

  ChunkRange elements(Slice slice) const {
    return {chunk(slice.buffer, slice.first).begin,
            chunk(slice.buffer, slice.first + slice.count - 1).end};
  }

  // In place, input and output are one buffer; the smaller one is this rank's share of the larger.
  Extent extent(Slice slice) const {
    ChunkRange range = elements(slice);
    Buffer buffer = slice.buffer;
    if (key_.in_place && buffer != Buffer::scratch) {
      const std::int64_t shift = key_.count * rank_;
      const auto operation = key_.algorithm->operation;
      const bool shifted =
          (operation == machine::Operation::all_gather && buffer == Buffer::input) ||
          (operation == machine::Operation::reduce_scatter && buffer == Buffer::output);
      if (shifted) range = {range.begin + shift, range.end + shift};
      buffer = Buffer::input;
    }
    return {buffer, range};
  }

  bool same(Slice a, Slice b) const {
    const Extent first = extent(a), second = extent(b);
    return first.buffer == second.buffer && first.range.begin == second.range.begin;
  }

  bool overlap(Slice a, Slice b) const {
    const Extent first = extent(a), second = extent(b);
    return first.buffer == second.buffer && first.range.begin < second.range.end &&
           second.range.begin < first.range.end;
  }

 private:
  ChunkRange chunk(Buffer buffer, int index) const {
    const int pieces = plan_.pieces;
    if (buffer == Buffer::scratch) {
      const std::int64_t share =
          key_.algorithm->operation == machine::Operation::all_reduce && plan_.output_shares > 1
              ? part_of(key_.count, ranks_, rank_).size()
              : key_.count;
      const ChunkRange piece = part_of(share, pieces, index % pieces);
      const std::int64_t begin = share * (index / pieces);
      return {begin + piece.begin, begin + piece.end};
    }
    if (key_.algorithm->operation == machine::Operation::all_reduce)
      return chunk_range(key_.count,
                         buffer == Buffer::input ? plan_.input_shares : plan_.output_shares, pieces,
                         index);
    // Shares of the others are equal and `count` long.
    const ChunkRange piece = part_of(key_.count, pieces, index % pieces);
    const std::int64_t begin = key_.count * (index / pieces);
    return {begin + piece.begin, begin + piece.end};
  }

  const Plan& plan_;
  const CallKey& key_;
  int rank_, ranks_;
};

}  // namespace

int pieces_for(std::size_t share_bytes) {
  constexpr std::size_t piece_bytes = 128 * 1024;
  constexpr std::size_t most = max_outstanding / 4;  // two messages a piece, and room to run ahead
  return static_cast<int>(std::clamp<std::size_t>(share_bytes / piece_bytes, 1, most));
}

Execution::Execution(const CallKey& key, int rank, int ranks, machine::Device& host)
    : kernels_(host.stream().kernels()), label_{key.algorithm->operation, key.dtype} {
  const std::size_t size = machine::size_of(key.dtype);
  const std::int64_t share = key.algorithm->operation == machine::Operation::all_reduce
                                 ? part_of(key.count, ranks, 0).size()
                                 : key.count;
  pieces_ = pieces_for(static_cast<std::size_t>(share) * size);
  const Plan plan = key.algorithm->plan(rank, ranks, pieces_);
  pieces_ = plan.pieces;
  const Layout layout(plan, key, rank, ranks);
  // Where nothing of a call survives in the cache until the next, results go past it.
  const int buffers = plan.input_shares + (key.in_place ? 0 : plan.output_shares);
  const std::size_t bytes = static_cast<std::size_t>(share) * size *
                            static_cast<std::size_t>(buffers) * static_cast<std::size_t>(ranks);
  if (bytes > machine::last_level_cache_bytes()) store_ = machine::Store::streaming;
  if (plan.scratch_shares > 0)
    scratch_ = host.allocate(
        size * static_cast<std::size_t>(
                   layout.elements({Buffer::scratch, 0, plan.scratch_shares * plan.pieces}).end),
        machine::Category::buffers);

  const auto place = [&](Slice slice) {
    return Place{slice.buffer, static_cast<std::size_t>(layout.elements(slice).begin) * size};
  };
  std::vector<Slice> sources;  // of actions_, which leaves out copies of a chunk to itself
  for (const Step& step : plan.steps) {
    if (step.verb == Verb::copy && layout.same(step.source, step.target)) continue;
    const bool reads_source = step.verb != Verb::receive && step.verb != Verb::post;
    const bool writes = step.verb != Verb::send;
    const std::int64_t count = layout.elements(writes ? step.target : step.source).size();
    Action action{step.verb, step.peer, {}, {}, count, static_cast<std::size_t>(count) * size, {}};
    if (reads_source) action.source = place(step.source);
    if (writes) {
      action.target = place(step.target);
      // Of one channel only the last overlapping send matters: messages are taken in order.
      std::map<int, std::size_t> after;
      for (std::size_t earlier = 0; earlier < actions_.size(); ++earlier)
        if (actions_[earlier].verb == Verb::send &&
            // What a peer writes itself it has taken before: the prover sees to that.
            !(step.verb == Verb::post && actions_[earlier].peer == step.peer) &&
            layout.overlap(sources[earlier], step.target))
          after[actions_[earlier].peer] = earlier;
      for (const auto& [peer, earlier] : after) action.after.push_back(earlier);
    }
    actions_.push_back(std::move(action));
    sources.push_back(step.source);
  }
  for (std::size_t i = 0; i < actions_.size(); ++i) look_ahead(i);
  std::map<int, std::size_t> last;
  for (std::size_t i = 0; i < actions_.size(); ++i)
    if (actions_[i].verb == Verb::send) last[actions_[i].peer] = i;
  for (const auto& [peer, i] : last) last_sends_.push_back(i);
  numbers_.resize(actions_.size());
}

void Execution::look_ahead(std::size_t index) {
  Action& action = actions_[index];
  if (action.verb == Verb::post) {
    for (std::size_t i = index + 1; i < actions_.size(); ++i) {
      const Action& later = actions_[i];
      if (later.peer != action.peer) continue;
      if (later.verb == Verb::receive || later.verb == Verb::receive_reduce) ++action.ahead;
      if (later.verb == Verb::receive && later.target == action.target) return;
    }
    throw std::logic_error("a plan posts what it does not receive");
  }
  if (action.verb == Verb::reduce || action.verb == Verb::receive_reduce)
    for (std::size_t i = index + 1;
         i < actions_.size() && actions_[i].verb == Verb::send &&
         actions_[i].source == action.target && actions_[i].bytes == action.bytes;
         ++i)
      ++action.forwards;
}

std::size_t Execution::reduce(machine::Link& link, machine::Reduction reduction, std::size_t index,
                              const void* a, const void* b, void* target) {
  const Action& action = actions_[index];
  targets_.assign(1, target);
  const std::span sends(actions_.data() + index + 1, action.forwards);
  for (const Action& send : sends) {
    void* there = link.posted(send.peer, send.bytes);
    if (there) targets_.push_back(there);
  }
  const bool everywhere = action.forwards > 0 && targets_.size() == sends.size() + 1;
  if (!everywhere) targets_.resize(1);
  kernels_.reduce(reduction, label_.dtype, a, b, targets_, action.count,
                  everywhere ? store_ : machine::Store::cached);
  return everywhere ? sends.size() : 0;
}

void Execution::run(machine::Link& link, machine::Reduction reduction, const std::byte* input,
                    std::byte* output) {
  link.count_as(label_);
  std::byte* const buffers[] = {const_cast<std::byte*>(input), output,
                                static_cast<std::byte*>(scratch_.data())};
  const auto at = [&](Place place) {
    return buffers[static_cast<std::size_t>(place.buffer)] + place.offset;
  };
  for (std::size_t i = 0; i < actions_.size(); ++i) {
    const Action& action = actions_[i];
    std::size_t written = 0;
    for (const std::size_t sent : action.after) link.wait_sent(actions_[sent].peer, numbers_[sent]);
    switch (action.verb) {
      case Verb::send:
        numbers_[i] = link.send(action.peer, at(action.source), action.bytes);
        break;
      case Verb::receive:
        link.receive(action.peer, at(action.target), action.bytes, store_);
        break;
      case Verb::post:
        link.post(action.peer, action.ahead, at(action.target), action.bytes);
        break;
      case Verb::receive_reduce: {
        const void* theirs = link.receive_in_place(action.peer, action.bytes);
        written = reduce(link, reduction, i, at(action.source), theirs, at(action.target));
        link.release(action.peer);
        break;
      }
      case Verb::copy:
        if (action.bytes > 0) std::memcpy(at(action.target), at(action.source), action.bytes);
        break;
      case Verb::reduce:
        written =
            reduce(link, reduction, i, at(action.target), at(action.source), at(action.target));
        break;
    }
    for (; written > 0; --written) {  // stands for the sends that follow
      ++i;
      numbers_[i] = link.deliver(actions_[i].peer, actions_[i].bytes);
    }
  }
  for (const std::size_t sent : last_sends_) link.wait_sent(actions_[sent].peer, numbers_[sent]);
}

}  // namespace collectives

#include "collectives/execute.h"

#include <algorithm>
#include <map>
#include <span>
#include <stdexcept>

#include "collectives/layout.h"
#include "machine/world/binding.h"

namespace collectives {
Call with_pieces(const Algorithm& algorithm, Call call, std::int64_t count, machine::Dtype dtype) {
  constexpr std::int64_t piece_bytes = 128 * 1024;
  constexpr std::int64_t most = max_outstanding / 4;  // two messages a piece, and room to run ahead
  call.pieces = 1;
  if (call.traffic) return call;
  const std::int64_t share = deals_in_shares(algorithm.operation)
                                 ? count
                                 : part_of(count, algorithm.plan(call).shares, 0).size();
  const auto bytes = share * static_cast<std::int64_t>(size_of(dtype));
  call.pieces = static_cast<int>(std::clamp<std::int64_t>(bytes / piece_bytes, 1, most));
  call.pieces = algorithm.plan(call).pieces;
  return call;
}

Execution::Execution(const CallKey& key, int rank, int ranks, machine::Device& device, bool meets)
    : stream_(device.stream()),
      kernels_(stream_.kernels()),
      on_host_(device.readable_by_host()),
      label_{key.algorithm->operation, key.dtype} {
  const std::size_t size = size_of(key.dtype);
  const Call call =
      with_pieces(*key.algorithm, {rank, ranks, 1, key.root, key.inner, key.traffic.get()},
                  key.count, key.dtype);
  const Plan plan = key.algorithm->plan(call);
  const Layout layout(key.algorithm->operation, plan, call, key.count);
  // Where nothing of a call survives in the cache until the next, results go past it.
  const std::int64_t elements =
      layout.input_elements() + (key.in_place ? 0 : layout.output_elements());
  if (static_cast<std::size_t>(elements * ranks) * size > machine::last_level_cache_bytes())
    store_ = machine::Store::streaming;
  if (plan.bays > 0)
    scratch_ = device.allocate(static_cast<std::size_t>(layout.scratch_elements()) * size,
                               machine::Category::buffers);

  const auto place = [&](Slice slice) {
    return Place{slice.buffer, static_cast<std::size_t>(layout.elements(slice).begin) * size};
  };
  const auto overlap = [&](Slice a, Slice b) {
    return layout.site(a, key.in_place).overlaps(layout.site(b, key.in_place));
  };
  const auto same = [&](Slice a, Slice b) {
    return layout.site(a, key.in_place) == layout.site(b, key.in_place);
  };
  std::vector<Slice> sources, targets;  // of actions_, which leaves out copies of a chunk to itself
  constexpr std::size_t none = ~std::size_t{0};
  std::vector<std::size_t> action_of;  // by step
  for (const Step& step : plan.steps) {
    const bool needless = step.verb == Verb::copy && same(step.source, step.target);
    action_of.push_back(needless ? none : actions_.size());
    if (needless) continue;
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
            overlap(sources[earlier], step.target))
          after[actions_[earlier].peer] = earlier;
      for (const auto& [peer, earlier] : after) action.after.push_back(earlier);
    }
    actions_.push_back(std::move(action));
    sources.push_back(step.source);
    targets.push_back(step.target);
  }
  // What this rank reads again, or a peer here, had better stay in the cache.
  const auto is_read_after = [&](std::size_t index) {
    for (std::size_t later = index + 1; later < actions_.size(); ++later) {
      const Verb verb = actions_[later].verb;
      if (verb == Verb::post || verb == Verb::receive) continue;
      if (overlap(sources[later], targets[index])) return true;
      if (verb == Verb::reduce && overlap(targets[later], targets[index])) return true;
    }
    return false;
  };
  for (std::size_t i = 0; i < actions_.size() && store_ == machine::Store::streaming; ++i)
    if ((actions_[i].verb == Verb::receive || actions_[i].verb == Verb::copy) && !is_read_after(i))
      actions_[i].store = machine::Store::streaming;
  if (meets) {
    rounds_ = rounds_of(*key.algorithm, call, key.count, key.in_place);
    staged_at_.resize(actions_.size());
    std::size_t most = 0;
    for (Round& round : rounds_) {
      std::size_t staged = 0;
      for (auto* steps : {&round.transfers, &round.then})
        for (std::size_t& index : *steps) index = action_of[index];
      std::erase(round.then, none);
      for (const std::size_t i : round.transfers) {
        if (actions_[i].verb != Verb::receive_reduce) continue;
        staged_at_[i] = staged;
        staged += staged_bytes(actions_[i].bytes);
      }
      most = std::max(most, staged);
    }
    if (most > 0) staging_ = device.allocate(most, machine::Category::buffers);
    return;
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
  kernels_.reduce_to_all(reduction, label_.dtype, a, b, targets_, action.count,
                         everywhere ? store_ : machine::Store::cached);
  return everywhere ? sends.size() : 0;
}

void Execution::run(machine::Link& link, machine::Reduction reduction, const std::byte* input,
                    std::byte* output) {
  link.count_as(label_);
  std::byte* const buffers[] = {const_cast<std::byte*>(input), output,
                                static_cast<std::byte*>(scratch_.data())};
  if (link.meets())
    run_in_rounds(link, reduction, buffers);
  else
    run_in_order(link, reduction, buffers);
}

void Execution::run_in_rounds(machine::Link& link, machine::Reduction reduction,
                              std::byte* const* buffers) {
  auto* staging = static_cast<std::byte*>(staging_.data());
  for (const Round& round : rounds_) {
    transfers_.clear();
    for (const std::size_t i : round.transfers) {
      const Action& action = actions_[i];
      const bool sends = action.verb == Verb::send;
      std::byte* data = sends                          ? at(buffers, action.source)
                        : action.verb == Verb::receive ? at(buffers, action.target)
                                                       : staging + staged_at_[i];
      transfers_.push_back({sends, action.peer, data, action.bytes});
    }
    if (!transfers_.empty()) link.exchange(transfers_);
    for (const std::size_t i : round.then) {
      const Action& action = actions_[i];
      std::byte* target = at(buffers, action.target);
      const std::byte* source = at(buffers, action.source);
      if (action.verb == Verb::copy)
        copy(target, source, action.bytes, action.store);
      else if (action.verb == Verb::reduce)
        kernels_.reduce(reduction, label_.dtype, target, source, target, action.count);
      else
        kernels_.reduce(reduction, label_.dtype, source, staging + staged_at_[i], target,
                        action.count);
    }
  }
}

void Execution::run_in_order(machine::Link& link, machine::Reduction reduction,
                             std::byte* const* buffers) {
  const auto at = [&](Place place) { return this->at(buffers, place); };
  for (std::size_t i = 0; i < actions_.size(); ++i) {
    const Action& action = actions_[i];
    std::size_t written = 0;
    for (const std::size_t sent : action.after) link.wait_sent(actions_[sent].peer, numbers_[sent]);
    switch (action.verb) {
      case Verb::send:
        numbers_[i] = link.send(action.peer, at(action.source), action.bytes);
        break;
      case Verb::receive:
        link.receive(action.peer, at(action.target), action.bytes, action.store);
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
        copy(at(action.target), at(action.source), action.bytes, action.store);
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

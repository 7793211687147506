#include "collectives/execute.h"

#include <algorithm>
#include <map>
#include <span>
#include <thread>
#include <utility>

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

namespace {

// If the buffers of the host's ranks exceed the cache that they keep, no result survives there
// until the next call: results bypass it.
machine::Store store_of(const Layout& layout, const CallKey& key, int ranks_of_host) {
  const std::int64_t elements =
      layout.input_elements() + (key.in_place ? 0 : layout.output_elements());
  const std::size_t bytes = static_cast<std::size_t>(elements * ranks_of_host) * size_of(key.dtype);
  return machine::stays_in_cache(bytes, ranks_of_host) ? machine::Store::cached
                                                       : machine::Store::streaming;
}

}  // namespace

Execution::Execution(const CallKey& key, int rank, int ranks, machine::Stream& stream,
                     const std::vector<Round>* rounds, int ranks_of_host)
    : stream_(stream),
      kernels_(stream_.kernels()),
      on_host_(stream.device().readable_by_host()),
      label_{key.algorithm->operation, key.dtype} {
  const std::size_t size = size_of(key.dtype);
  const Call call = with_pieces(
      *key.algorithm, {rank, ranks, 1, key.root, key.inner, key.traffic.get(), key.in_place},
      key.count, key.dtype);
  const Plan plan = key.algorithm->plan(call);
  const Layout layout(key.algorithm->operation, plan, call, key.count);
  if (on_host_) store_ = store_of(layout, key, ranks_of_host > 0 ? ranks_of_host : ranks);
  if (plan.bays > 0)
    scratch_ = stream_.device().allocate(static_cast<std::size_t>(layout.scratch_elements()) * size,
                                         machine::Category::buffers);
  BoundPlan bound = bind(plan, layout, key.in_place, size, store_, on_host_ && !rounds);
  actions_ = std::move(bound.actions);
  if (rounds)
    prepare_rounds(*rounds, bound.action_of);
  else
    prepare_order();
  order_shares(key, ranks);
}

void Execution::order_shares(const CallKey& key, int ranks) {
  const bool gathers = label_.operation == machine::Operation::all_gather;
  shares_at_.resize(actions_.size());
  if (!gathers && label_.operation != machine::Operation::reduce_scatter) return;
  std::vector<std::size_t> order;  // of the actions in a run
  for (std::size_t i = 0; rounds_.empty() && i < actions_.size(); ++i) order.push_back(i);
  for (const Round& round : rounds_)
    for (const auto* part : {&round.transfers, &round.then})
      for (const std::size_t i : *part)
        if (part == &round.then || actions_[i].verb != Verb::receive_reduce) order.push_back(i);
  if (gathers) std::ranges::reverse(order);  // to find the last write
  const std::size_t share_bytes = static_cast<std::size_t>(key.count) * size_of(key.dtype);
  std::vector<bool> seen(static_cast<std::size_t>(ranks));
  for (const std::size_t i : order) {
    const Action& action = actions_[i];
    const Place place = gathers ? action.target : action.source;
    const bool touches =
        action.verb != Verb::post && action.verb != (gathers ? Verb::send : Verb::receive);
    if (!touches || place.buffer != (gathers ? Buffer::output : Buffer::input)) continue;
    for (std::size_t at = place.offset; at < place.offset + action.bytes;
         at = (at / share_bytes + 1) * share_bytes) {
      const std::size_t share = at / share_bytes;
      if (seen[share]) continue;
      seen[share] = true;
      shares_at_[i].push_back(static_cast<int>(share));
      share_order_.push_back(static_cast<int>(share));
    }
  }
  if (gathers) std::ranges::reverse(share_order_);
  for (std::size_t share = 0; share < seen.size(); ++share)
    if (!seen[share]) untouched_.push_back(static_cast<int>(share));
  share_order_.insert(share_order_.begin(), untouched_.begin(), untouched_.end());
}

void Execution::prepare_order() {
  std::map<int, std::size_t> last;
  for (std::size_t i = 0; i < actions_.size(); ++i)
    if (actions_[i].verb == Verb::send) last[actions_[i].peer] = i;
  for (const auto& [peer, i] : last) last_sends_.push_back(i);
  numbers_.resize(actions_.size());
}

void Execution::prepare_rounds(std::vector<Round> rounds,
                               const std::vector<std::size_t>& action_of) {
  rounds_ = std::move(rounds);
  staged_at_.resize(actions_.size());
  std::size_t most = 0;
  for (Round& round : rounds_) {
    for (auto* steps : {&round.transfers, &round.then})
      for (std::size_t& index : *steps) index = action_of[index];
    std::erase(round.then, BoundPlan::no_action);
    std::size_t staged = 0;
    for (const std::size_t i : round.transfers) {
      if (actions_[i].verb != Verb::receive_reduce) continue;
      staged_at_[i] = staged;
      staged += staged_bytes(actions_[i].bytes);
    }
    most = std::max(most, staged);
  }
  if (most > 0) staging_ = stream_.device().allocate(most, machine::Category::links);
}

// A peer posts when its call begins, which is about when this rank's call begins, or when it has
// the core that this rank holds. A late peer gets the message as usual.
std::uint64_t Execution::send(machine::Link& link, const Action& action, const std::byte* source) {
  constexpr int looks = 200;  // about a microsecond, if no other rank has the core
  for (int look = 0; action.pushes && look < looks; ++look) {
    if (void* const there = link.posted(action.peer, action.bytes)) {
      copy(there, source, action.bytes, store_);
      return link.deliver(action.peer, action.bytes);
    }
    if (link.shares_cores()) std::this_thread::yield();
  }
  if (action.lends) return link.lend(action.peer, source, action.bytes);
  return link.send(action.peer, source, action.bytes);
}

std::size_t Execution::reduce(machine::Link& link, machine::Reduction reduction, std::size_t index,
                              std::span<const void* const> summands, void* target) {
  const Action& action = actions_[index];
  targets_.assign(1, target);
  const std::span sends(actions_.data() + index + 1, action.forwards);
  for (const Action& send : sends) {
    void* there = link.posted(send.peer, send.bytes);
    if (there) targets_.push_back(there);
  }
  const bool everywhere = action.forwards > 0 && targets_.size() == sends.size() + 1;
  if (!everywhere) targets_.resize(1);
  kernels_.reduce_to_all(reduction, label_.dtype, summands, targets_, action.count,
                         everywhere ? store_ : action.store);
  return everywhere ? sends.size() : 0;
}

void Execution::run(machine::Link& link, machine::Reduction reduction, const std::byte* input,
                    std::byte* output, const ShareHooks& hooks) {
  link.count_as(label_);
  std::byte* const buffers[] = {const_cast<std::byte*>(input), output,
                                static_cast<std::byte*>(scratch_.data())};
  for (const auto* hook : {&hooks.before_read, &hooks.after_write})
    if (*hook)
      for (const int share : untouched_) (*hook)(share);
  if (link.is_rendezvous())
    run_in_rounds(link, reduction, buffers, hooks);
  else
    run_in_order(link, reduction, buffers, hooks);
}

void Execution::run_in_rounds(machine::Link& link, machine::Reduction reduction,
                              std::byte* const* buffers, const ShareHooks& hooks) {
  auto* staging = static_cast<std::byte*>(staging_.data());
  for (const Round& round : rounds_) {
    transfers_.clear();
    for (const std::size_t i : round.transfers) {
      const Action& action = actions_[i];
      const bool sends = action.verb == Verb::send;
      if (action.verb != Verb::receive_reduce) call_at(i, hooks.before_read);
      std::byte* data = sends                          ? at(buffers, action.source)
                        : action.verb == Verb::receive ? at(buffers, action.target)
                                                       : staging + staged_at_[i];
      transfers_.push_back({sends, action.peer, data, action.bytes});
    }
    if (!transfers_.empty()) link.exchange(transfers_);
    for (const std::size_t i : round.transfers) call_at(i, hooks.after_write);
    for (const std::size_t i : round.then) {
      const Action& action = actions_[i];
      call_at(i, hooks.before_read);
      std::byte* target = at(buffers, action.target);
      const std::byte* source = at(buffers, action.source);
      if (action.verb == Verb::copy)
        copy(target, source, action.bytes, action.store);
      else if (action.verb == Verb::reduce)
        kernels_.reduce(reduction, label_.dtype, target, source, target, action.count);
      else
        kernels_.reduce(reduction, label_.dtype, source, staging + staged_at_[i], target,
                        action.count);
      call_at(i, hooks.after_write);
    }
  }
}

void Execution::run_in_order(machine::Link& link, machine::Reduction reduction,
                             std::byte* const* buffers, const ShareHooks& hooks) {
  const auto at = [&](Place place) { return this->at(buffers, place); };
  for (std::size_t i = 0; i < actions_.size(); ++i) {
    const Action& action = actions_[i];
    std::size_t written = 0;
    const bool received_first = hooks.receives_first && action.verb == Verb::receive_reduce;
    if (!received_first) call_at(i, hooks.before_read);
    for (const std::size_t sent : action.after) link.wait_sent(actions_[sent].peer, numbers_[sent]);
    switch (action.verb) {
      case Verb::send: {
        const std::size_t more = action.to_all.empty() ? 0 : action.to_all.size() - 1;
        if (more == 0) {
          numbers_[i] = send(link, action, at(action.source));
          break;
        }
        link.send_to_all(action.to_all, at(action.source), action.bytes,
                         std::span(numbers_).subspan(i, more + 1));
        i += more;
        break;
      }
      case Verb::receive:
        link.receive(action.peer, at(action.target), action.bytes, action.store);
        break;
      case Verb::post:
        link.post(action.peer, action.ahead, at(action.target), action.bytes);
        break;
      case Verb::receive_reduce: {
        summands_.clear();
        for (const Term& term : action.terms)
          summands_.push_back(term.peer < 0 ? at(term.own)
                                            : link.receive_in_place(term.peer, action.bytes));
        if (received_first) call_at(i, hooks.before_read);
        written = reduce(link, reduction, i, summands_, at(action.target));
        for (const Term& term : action.terms)
          if (term.peer >= 0) link.release(term.peer);
        break;
      }
      case Verb::copy:
        copy(at(action.target), at(action.source), action.bytes, action.store);
        break;
      case Verb::reduce:
        summands_ = {at(action.target), at(action.source)};
        written = reduce(link, reduction, i, summands_, at(action.target));
        break;
    }
    call_at(i, hooks.after_write);
    for (; written > 0; --written) {  // replaces the sends that follow
      ++i;
      numbers_[i] = link.deliver(actions_[i].peer, actions_[i].bytes);
    }
  }
  for (const std::size_t sent : last_sends_) link.wait_sent(actions_[sent].peer, numbers_[sent]);
}

}  // namespace collectives

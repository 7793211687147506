#include "collectives/bind.h"

#include <algorithm>
#include <map>
#include <ranges>
#include <set>
#include <stdexcept>
#include <utility>

#include "collectives/joined_sum.h"
#include "collectives/range_map.h"

namespace collectives {
namespace {

class Binding {
 public:
  Binding(const Plan& plan, const Layout& layout, bool in_place, std::size_t element_bytes,
          bool joins_sums)
      : layout_(layout), in_place_(in_place), element_bytes_(element_bytes) {
    for (std::size_t i = 0; i < plan.steps.size();) {
      const JoinedSum sum = joins_sums ? joined_sum(plan, i) : JoinedSum{};
      if (sum.steps > 0)
        bind(sum);
      else
        bind(plan.steps[i]);
      i += std::max<std::size_t>(1, sum.steps);
    }
  }

  // Keeps in the cache the values that this rank or a peer reads again, and sums in place, whose
  // target the addition has fetched.
  void choose_stores() {
    RangeMap<bool> read_later;
    for (std::size_t i = bound_.actions.size(); i-- > 0;) {
      Action& action = bound_.actions[i];
      const Sites& sites = sites_[i];
      if (action.verb == Verb::receive || action.verb == Verb::copy ||
          (action.verb == Verb::receive_reduce && sites.source != sites.target)) {
        bool again = false;
        read_later.visit(sites.target, [&](bool read) { again = again || read; });
        if (!again) action.store = machine::Store::streaming;
      }
      if (reads_source(action.verb)) read_later.assign(sites.source, true);
      for (const Layout::Site& own : sites.more) read_later.assign(own, true);
      if (action.verb == Verb::reduce) read_later.assign(sites.target, true);
    }
    bound_.visited += read_later.visited();
  }

  // Finds the message of each post. Walks backwards: `later` counts a peer's messages after an
  // action, and `behind` those after the next message into a place.
  void number_posts() {
    std::map<int, int> later;
    std::map<std::pair<int, Place>, int> behind;
    for (std::size_t i = bound_.actions.size(); i-- > 0;) {
      Action& action = bound_.actions[i];
      if (action.verb == Verb::receive) behind[{action.peer, action.target}] = later[action.peer];
      if (action.verb == Verb::receive) ++later[action.peer];
      for (const Term& term : action.terms)
        if (term.peer >= 0) ++later[term.peer];
      if (action.verb != Verb::post) continue;
      const auto received = behind.find({action.peer, action.target});
      if (received == behind.end())
        throw std::logic_error("a plan posts a place that it does not receive into");
      action.ahead = later[action.peer] - received->second;
    }
  }

  // A rank that still receives from the peer of a send waits for that peer anyway (Link::lend).
  void find_lends() {
    std::set<int> awaited;  // peers whose messages follow
    for (Action& action : std::views::reverse(bound_.actions)) {
      if (action.verb == Verb::send) action.lends = awaited.contains(action.peer);
      if (action.verb == Verb::receive) awaited.insert(action.peer);
      for (const Term& term : action.terms)
        if (term.peer >= 0) awaited.insert(term.peer);
    }
  }

  void count_forwards() {
    std::vector<Action>& actions = bound_.actions;
    for (std::size_t i = 0; i < actions.size(); ++i) {
      Action& action = actions[i];
      if (action.verb != Verb::reduce && action.verb != Verb::receive_reduce) continue;
      for (std::size_t next = i + 1;
           next < actions.size() && actions[next].verb == Verb::send &&
           actions[next].source == action.target && actions[next].bytes == action.bytes;
           ++next)
        ++action.forwards;
    }
  }

  void join_sends() {
    std::vector<Action>& actions = bound_.actions;
    const auto joins = [&](std::size_t i) {
      return i < actions.size() && actions[i].verb == Verb::send && !actions[i].pushes;
    };
    for (std::size_t i = 0; i < actions.size(); ++i) {
      if (!joins(i)) continue;
      std::vector<int>& peers = actions[i].to_all;
      for (std::size_t next = i; joins(next) && actions[next].source == actions[i].source &&
                                 actions[next].bytes == actions[i].bytes;
           ++next)
        peers.push_back(actions[next].peer);
      i += peers.size() - 1;
    }
  }

  BoundPlan take() {
    bound_.visited += sent_from_.visited();
    return std::move(bound_);
  }

 private:
  struct Sites {
    Layout::Site source, target;
    std::vector<Layout::Site> more{};  // sources of a joined sum
  };
  using LastSends = std::map<int, std::size_t>;  // by peer: messages of a channel are in order

  static bool reads_source(Verb verb) { return verb != Verb::receive && verb != Verb::post; }

  Place place(Slice slice) const {
    return {slice.buffer, static_cast<std::size_t>(layout_.elements(slice).begin) * element_bytes_};
  }

  void bind(const Step& step) {
    const Sites sites{layout_.site(step.source, in_place_), layout_.site(step.target, in_place_)};
    if (step.verb == Verb::copy && sites.source == sites.target) {
      bound_.action_of.push_back(BoundPlan::no_action);
      return;
    }
    const bool writes = step.verb != Verb::send;
    const std::int64_t count = layout_.elements(writes ? step.target : step.source).size();
    Action action{
        step.verb, step.peer, {}, {}, count, static_cast<std::size_t>(count) * element_bytes_, {}};
    action.pushes = step.pushes;
    if (step.verb == Verb::receive_reduce) action.terms = {{-1, place(step.source)}, {step.peer}};
    if (reads_source(step.verb)) action.source = place(step.source);
    if (writes) {
      action.target = place(step.target);
      action.after = sends_from(sites.target, step);
    } else {
      const std::size_t index = bound_.actions.size();
      sent_from_.update(sites.source, [&](LastSends& sends) { sends[step.peer] = index; });
    }
    bound_.action_of.push_back(bound_.actions.size());
    bound_.actions.push_back(std::move(action));
    sites_.push_back(sites);
  }

  // Binds the sum as one receive_reduce, whose peer and source are the last of its peers and
  // sources.
  void bind(const JoinedSum& sum) {
    Step step{Verb::receive_reduce, -1, sum.target, sum.target};
    for (const Summand& summand : sum.summands)
      if (summand.peer >= 0)
        step.peer = summand.peer;
      else
        step.source = summand.own;
    bind(step);
    Action& action = bound_.actions.back();
    action.terms.clear();
    for (const Summand& summand : sum.summands) {
      action.terms.push_back({summand.peer, summand.peer < 0 ? place(summand.own) : Place{}});
      if (summand.peer < 0) sites_.back().more.push_back(layout_.site(summand.own, in_place_));
    }
    for (std::size_t i = 1; i < sum.steps; ++i) bound_.action_of.push_back(BoundPlan::no_action);
  }

  // Returns the sends that still read the target of the step. The write waits for them, so later
  // writes do not have to.
  std::vector<std::size_t> sends_from(const Layout::Site& target, const Step& step) {
    LastSends last;
    sent_from_.visit(target, [&](const LastSends& sends) {
      for (const auto& [peer, send] : sends) {
        // The peer writes here only after it has read our send. The prover checks this.
        if (step.verb == Verb::post && peer == step.peer) continue;
        auto& known = last.try_emplace(peer, send).first->second;
        known = std::max(known, send);
      }
    });
    if (step.verb != Verb::post) sent_from_.assign(target, {});
    std::vector<std::size_t> after;
    for (const auto& [peer, send] : last) after.push_back(send);
    return after;
  }

  const Layout& layout_;
  bool in_place_;
  std::size_t element_bytes_;
  BoundPlan bound_;
  std::vector<Sites> sites_;       // by action
  RangeMap<LastSends> sent_from_;  // sends that no write has waited for
};

}  // namespace

BoundPlan bind(const Plan& plan, const Layout& layout, bool in_place, std::size_t element_bytes,
               machine::Store store, bool joins_sums) {
  Binding binding(plan, layout, in_place, element_bytes, joins_sums);
  if (store == machine::Store::streaming) binding.choose_stores();
  binding.number_posts();
  binding.find_lends();
  binding.count_forwards();
  binding.join_sends();
  return binding.take();
}

}  // namespace collectives

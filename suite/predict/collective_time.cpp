#include "suite/predict/collective_time.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <stdexcept>
#include <utility>
#include <vector>

namespace suite::predict {
namespace {

using collectives::Call;
using machine::Operation;

bool supports(Operation operation, std::string_view algorithm, int ranks) {
  return collectives::find_algorithm(operation, algorithm).refuses({.ranks = ranks}).empty();
}

std::vector<std::string_view> usual(Operation operation) {
  switch (operation) {
    case Operation::all_reduce:
      return {"ring", "double_binary_tree"};
    case Operation::all_gather:
      return {"ring", "recursive_doubling"};
    case Operation::reduce_scatter:
      return {"ring", "recursive_halving"};
    case Operation::all_to_all:
      return {"direct"};
    case Operation::broadcast:
      return {"ring", "double_binary_tree"};
    default:
      return {"ring"};
  }
}

struct Arrival {
  double at;
};

// One rank that executes its plan.
struct Walker {
  collectives::Plan plan;
  std::size_t next = 0;
  double clock = 0, port_free = 0;
};

}  // namespace

Spread spread(const Cluster& cluster, int ranks, int stride) {
  const int in_node = std::max(1, cluster.gpus_per_node / std::max(stride, 1));
  return {ranks, std::min(ranks, in_node)};
}

Connection connection(const Cluster& cluster, const Spread& group, bool one_adapter) {
  if (!group.leaves_node()) return {cluster.node.latency_s, cluster.node.rate()};
  const double adapters = one_adapter ? 1 : group.in_node;
  // A node's ranks send what leaves the node together, once.
  const double network = cluster.network.rate() * adapters;
  const double rate = group.in_node > 1 ? std::min(network, cluster.node.rate()) : network;
  return {cluster.network.latency_s, rate};
}

// Volumes are proportional to the count, so any count that all shares divide gives the fractions.
Charge charge(Operation operation, std::string_view algorithm, int ranks) {
  const std::int64_t share = 1 << 10, whole = share * ranks;
  const std::int64_t count = collectives::deals_in_shares(operation) ? share : whole;
  const collectives::Algorithm& one = collectives::find_algorithm(operation, algorithm);
  // All ranks of a ring are equally busy. Trees, and other numbers than powers of two, differ.
  const int tried = algorithm == "ring" && operation != Operation::broadcast ? 1 : ranks;
  Charge busiest;
  for (int rank = 0; rank < tried; ++rank) {
    const collectives::Volume volume = one.volume({.rank = rank, .ranks = ranks}, count);
    busiest.sent =
        std::max(busiest.sent, static_cast<double>(std::max(volume.sent, volume.received)) /
                                   static_cast<double>(whole));
    busiest.messages =
        std::max(busiest.messages,
                 static_cast<double>(std::max(volume.messages_sent, volume.messages_received)));
  }
  return busiest;
}

std::vector<std::string_view> usual_algorithms(Operation operation, int ranks) {
  std::vector<std::string_view> all = usual(operation);
  std::erase_if(all, [&](std::string_view one) { return !supports(operation, one, ranks); });
  return all;
}

double sent_bytes(Operation operation, int ranks, double bytes) {
  return ranks > 1 ? bytes * charge(operation, usual(operation).front(), ranks).sent : 0;
}

double collective_s(const Cluster& cluster, Operation operation, const Spread& group, double bytes,
                    bool one_adapter) {
  if (group.ranks == 1 || bytes <= 0) return 0;
  const Connection link = connection(cluster, group, one_adapter);
  double best = std::numeric_limits<double>::infinity();
  for (const std::string_view algorithm : usual_algorithms(operation, group.ranks))
    best = std::min(best, charge(operation, algorithm, group.ranks).seconds(link, bytes));
  return best;
}

namespace {
double bytes_of(const collectives::CollectiveCalls& one) {
  return static_cast<double>(one.elements) * static_cast<double>(machine::size_of(one.dtype));
}
}  // namespace

double collective_s(const Cluster& cluster, const Spread& group,
                    const std::vector<collectives::CollectiveCalls>& calls) {
  double seconds = 0;
  for (const collectives::CollectiveCalls& one : calls)
    seconds +=
        static_cast<double>(one.calls) * collective_s(cluster, one.operation, group, bytes_of(one));
  return seconds;
}

double sent_bytes(const std::vector<collectives::CollectiveCalls>& calls) {
  double bytes = 0;
  for (const collectives::CollectiveCalls& one : calls)
    bytes += static_cast<double>(one.calls) * sent_bytes(one.operation, one.ranks, bytes_of(one));
  return bytes;
}

double exchange_s(const Cluster& cluster, const Spread& group, double messages, double bytes) {
  if (group.ranks == 1) return 0;
  if (!group.leaves_node()) return messages * cluster.node.latency_s + bytes / cluster.node.rate();
  const double outside = static_cast<double>(group.ranks - group.in_node) / (group.ranks - 1);
  return messages * cluster.network.latency_s +
         bytes * std::max(outside / cluster.network.rate(), (1 - outside) / cluster.node.rate());
}

Connection connection_of_pair(const Cluster& cluster, int from, int to) {
  const bool in_node = from / cluster.gpus_per_node == to / cluster.gpus_per_node;
  const Links& links = in_node ? cluster.node : cluster.network;
  return {links.latency_s, links.rate()};
}

namespace {

double walk(const collectives::Algorithm& algorithm, const Call& call, double bytes,
            const std::function<Connection(int from, int to)>& link) {
  std::vector<Walker> ranks(static_cast<std::size_t>(call.ranks));
  for (int rank = 0; rank < call.ranks; ++rank) {
    Call mine = call;
    mine.rank = rank;
    ranks[static_cast<std::size_t>(rank)].plan = algorithm.plan(mine);
  }
  std::map<std::pair<int, int>, std::deque<Arrival>> channels;
  double end = 0;
  for (bool moved = true; moved;) {
    moved = false;
    for (int rank = 0; rank < call.ranks; ++rank) {
      Walker& me = ranks[static_cast<std::size_t>(rank)];
      for (; me.next < me.plan.steps.size(); ++me.next, moved = true) {
        const collectives::Step& step = me.plan.steps[me.next];
        const double chunk = bytes / me.plan.shares / me.plan.pieces;
        if (step.verb == collectives::Verb::send) {
          const Connection used = link(rank, step.peer);
          me.port_free = std::max(me.clock, me.port_free) + chunk * step.source.count / used.rate;
          channels[{rank, step.peer}].push_back({me.port_free + used.latency_s});
        } else if (step.verb == collectives::Verb::receive ||
                   step.verb == collectives::Verb::receive_reduce) {
          std::deque<Arrival>& from = channels[{step.peer, rank}];
          if (from.empty()) break;
          me.clock = std::max(me.clock, from.front().at);
          from.pop_front();
        }
      }
      end = std::max(end, me.clock);
    }
  }
  for (const Walker& me : ranks)
    if (me.next < me.plan.steps.size()) throw std::logic_error("plan_s: the plans do not finish");
  return end;
}

}  // namespace

double plan_s(const collectives::Algorithm& algorithm, const Call& call, double bytes,
              const Connection& connection) {
  return walk(algorithm, call, bytes, [&](int, int) { return connection; });
}
double plan_s(const collectives::Algorithm& algorithm, const Call& call, double bytes,
              const Cluster& cluster) {
  return walk(algorithm, call, bytes,
              [&](int from, int to) { return connection_of_pair(cluster, from, to); });
}

}  // namespace suite::predict

#pragma once
// The time of a collective: of the algorithms that libraries use, the fastest. An algorithm takes
//   messages * latency + bytes / rate
// with the messages and bytes of its busiest rank by the paper's formula (collectives/plan.h),
// which the prover compares with the plan. plan_s walks the plan itself; for a ring both are equal.

#include <string>
#include <string_view>
#include <vector>

#include "collectives/communicator/calls.h"
#include "collectives/plan.h"
#include "suite/predict/cluster.h"

namespace suite::predict {

// The ranks of a group among the nodes: every stride-th rank of the cluster.
struct Spread {
  int ranks = 1;
  int in_node = 1;  // of its ranks
  bool leaves_node() const { return ranks > in_node; }
};
Spread spread(const Cluster& cluster, int ranks, int stride);

// The slowest connection that a group's ring uses, for one of its ranks. All groups of a node
// communicate at the same time, so a group has the adapters of its own ranks. With one_adapter, all
// ranks of a node share the rate of one.
struct Connection {
  double latency_s = 0, rate = 1;
};
Connection connection(const Cluster& cluster, const Spread& group, bool one_adapter = false);

// The messages of an algorithm's busiest rank, and its bytes as a fraction of the buffer.
struct Charge {
  double messages = 0, sent = 0;
  double seconds(const Connection& link, double bytes) const {
    return messages * link.latency_s + sent * bytes / link.rate;
  }
};
Charge charge(machine::Operation operation, std::string_view algorithm, int ranks);
// Returns the algorithms that libraries use and that support this number of ranks.
std::vector<std::string_view> usual_algorithms(machine::Operation operation, int ranks);

// bytes: of the whole buffer.
double collective_s(const Cluster& cluster, machine::Operation operation, const Spread& group,
                    double bytes, bool one_adapter = false);
// Returns the time of a rank's messages of equal size to all other ranks of the group. Those within
// its node pass in parallel with those over its adapter.
double exchange_s(const Cluster& cluster, const Spread& group, double messages, double bytes);
// Returns the bytes that a rank of a ring sends.
double sent_bytes(machine::Operation operation, int ranks, double bytes);
// Returns the time of a sequence of calls over one group.
double collective_s(const Cluster& cluster, const Spread& group,
                    const std::vector<collectives::CollectiveCalls>& calls);
double sent_bytes(const std::vector<collectives::CollectiveCalls>& calls);

// Returns the links between two ranks of a group that fills nodes one after another: those of a
// node, or only the adapter of the sender.
Connection connection_of_pair(const Cluster& cluster, int from, int to);

// Executes the plans of all ranks: a rank's messages leave one after another at the rate, and
// arrive after the latency. Sums cost no time. ranks: at most a few hundred.
double plan_s(const collectives::Algorithm& algorithm, const collectives::Call& call, double bytes,
              const Connection& connection);
double plan_s(const collectives::Algorithm& algorithm, const collectives::Call& call, double bytes,
              const Cluster& cluster);

}  // namespace suite::predict

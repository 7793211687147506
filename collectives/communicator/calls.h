#pragma once
// The cost of collective calls for a rank, in closed form: bytes and messages on the wire, and the
// scratch and staging that a communicator keeps. The oracles of layers, ZeRO and the training step
// sum their calls here.
//
//   CallsCost cost;
//   for (const CollectiveCalls& calls : layers::forward_calls(config, stage))
//     cost.add(calls, tp);
//   judge.volume(link, cost.traffic("tp"));

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <tuple>

#include "collectives/communicator/group_algorithms.h"
#include "collectives/cost.h"

namespace collectives {

class Communicator;

// Equal calls of one operation.
struct CollectiveCalls {
  std::string group;  // "tp", "pp", "dp", "embedding"
  machine::Operation operation = machine::Operation::all_reduce;
  machine::Dtype dtype = machine::Dtype::float32;
  int ranks = 1;
  std::int64_t elements = 0;  // of the whole buffer; a multiple of ranks if deals_in_shares
  std::int64_t calls = 1;
  std::string what = {};  // "gradients", "values", "norm"; for tables
  int root = 0;           // of broadcast, reduce, gather, scatter

  // Returns the count of the algorithms: elements of the whole buffer, or of a share
  // (deals_in_shares).
  std::int64_t count() const { return deals_in_shares(operation) ? elements / ranks : elements; }
  bool operator==(const CollectiveCalls&) const = default;
};

// Returns the algorithm that a communicator with these algorithms uses for calls that name none.
std::string_view usual_algorithm(const CollectiveCalls& calls, machine::Transport transport,
                                 const GroupAlgorithms& algorithms = {});
// The name may be in the algorithms.
std::string_view usual_algorithm(const CollectiveCalls& calls, machine::Transport transport,
                                 GroupAlgorithms&& algorithms) = delete;

// The sum over all calls that were added. Calls over one rank have no cost. The library's own
// collectives have no traffic, scratch or staging here, because it does not count its bytes.
class CallsCost {
 public:
  using ByLabel = std::map<machine::TrafficLabel, machine::Traffic>;

  // rank: in the calls' group. Throws like find_algorithm for an unknown algorithm. Adds no
  // staging.
  void add(const CollectiveCalls& calls, std::string_view algorithm, int rank);
  // Adds calls of this communicator, which name the algorithm `asked`, or none. Over rendezvous
  // links it reads the rounds of the plans. So it is collective for calls that have not run.
  void add(const CollectiveCalls& calls, Communicator& group, std::string_view asked = {});

  // Return the traffic of one group and of all groups.
  ByLabel traffic(const std::string& group) const;
  const std::map<std::string, ByLabel>& traffic() const { return traffic_; }
  // Returns the labels of the calls of a group that the library runs.
  std::set<machine::TrafficLabel> by_library(const std::string& group) const;
  // Return the bytes that plans keep, once for each group, operation, dtype, length and root.
  // staging: of received parts over rendezvous links, in the category links.
  std::size_t scratch() const;
  std::size_t staging() const;

 private:
  struct Kept {
    std::size_t scratch = 0, staging = 0;
  };
  void add(const CollectiveCalls& calls, const Algorithm& algorithm, const Call& call,
           std::size_t staging);

  std::map<std::string, ByLabel> traffic_;
  std::map<std::string, std::set<machine::TrafficLabel>> by_library_;
  std::map<std::tuple<std::string, machine::TrafficLabel, std::int64_t, int>, Kept> kept_;
};

}  // namespace collectives

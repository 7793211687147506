#pragma once
// The cost of collective calls for a rank, in closed form: bytes and messages on the wire, and the
// scratch that a communicator keeps. The oracles of layers, ZeRO and the training step sum their
// calls here.
//
//   CallsCost cost;
//   for (const CollectiveCalls& calls : layers::forward_calls(config, stage))
//     cost.add(calls, usual_algorithm(calls, transport), rank);
//   judge.volume(link, cost.traffic("tp"));

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tuple>

#include "collectives/cost.h"

namespace collectives {

// Equal calls of one operation.
struct CollectiveCalls {
  std::string group;  // "tp", "pp", "dp", "embedding"
  machine::Operation operation = machine::Operation::all_reduce;
  machine::Dtype dtype = machine::Dtype::float32;
  int ranks = 1;
  std::int64_t elements = 0;  // of the whole buffer; a multiple of ranks if deals_in_shares
  std::int64_t calls = 1;
  std::string what = {};  // "gradients", "values", "norm"; for tables

  // Returns the count of the algorithms: elements of the whole buffer, or of a share
  // (deals_in_shares).
  std::int64_t count() const { return deals_in_shares(operation) ? elements / ranks : elements; }
  bool operator==(const CollectiveCalls&) const = default;
};

// Returns the algorithm that a communicator uses for the calls if no algorithm is specified.
std::string_view usual_algorithm(const CollectiveCalls& calls, machine::Transport transport);

// The sum over all calls that were added. Calls over one rank have no cost.
class CallsCost {
 public:
  using ByLabel = std::map<machine::TrafficLabel, machine::Traffic>;

  // rank: in the calls' group. Throws like find_algorithm for an unknown algorithm.
  void add(const CollectiveCalls& calls, std::string_view algorithm, int rank);

  // Return the traffic of one group and of all groups.
  ByLabel traffic(const std::string& group) const;
  const std::map<std::string, ByLabel>& traffic() const { return traffic_; }
  // Returns the bytes that plans keep, once for each group, operation, dtype and length.
  std::size_t scratch() const;

 private:
  std::map<std::string, ByLabel> traffic_;
  std::map<std::tuple<std::string, machine::TrafficLabel, std::int64_t>, std::size_t> scratch_;
};

}  // namespace collectives

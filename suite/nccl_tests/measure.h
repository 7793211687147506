#pragma once
// One row of the table: a collective of one size, out of place and in place. It is timed as by
// nccl-tests (one interval over all iterations, after a warm-up), and its values are checked.
//
// Collective over the world's group. Every rank gets the same row. Out of place, the output of the
// last timed operation is checked (nccl-tests does not check it). Then -c operations are checked,
// each on refilled buffers. The first wrong operation ends the checks. With -G, the timed
// operations are launches of a graph that holds all iterations, and a checked operation is a graph.

#include <cstdint>
#include <functional>
#include <vector>

#include "harness/measure/rates.h"
#include "machine/world/world.h"
#include "suite/collectives/collective_unit.h"
#include "suite/nccl_tests/table.h"

namespace suite::nccl_tests {

class Measure {
 public:
  Measure(machine::World& world, const Arguments& arguments, machine::Transport transport);

  Row row(std::int64_t size, machine::Dtype dtype, machine::Reduction reduction, int root);
  std::int64_t failed_checks() const { return failed_checks_; }  // so far, over all ranks

 private:
  using Buffers = CollectiveUnit::Buffers;
  Timing timing(CollectiveUnit* unit, const Buffers& buffers, const Row& row, bool in_place);
  // Returns the seconds of one operation on this rank. `each`: seconds of every iteration, with -I.
  double seconds(const std::function<void()>& operation, std::vector<double>& each);
  double seconds_of_graph(const std::function<void()>& operation);
  void check(CollectiveUnit* unit, const Buffers& buffers, bool in_place, Timing& timing);

  machine::World& world_;
  const Arguments& arguments_;
  machine::Transport transport_;
  collectives::Communicator meeting_;  // for barriers between iterations
  harness::Rates no_rates_;
  std::int64_t failed_checks_ = 0;
};

// Returns one value for all ranks, selected by -a.
double over_ranks(OverRanks how, const std::vector<double>& by_rank);

}  // namespace suite::nccl_tests

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
#include <memory>
#include <optional>
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
  // The seconds of one operation on this rank. On a GPU, the host queues operations and continues.
  struct Spent {
    double wall = 0, host = 0;            // until all have ended, until all were queued
    std::optional<double> device{};       // between events before the first and after the last
    std::vector<double> iterations_us{};  // of every iteration, with -I
  };
  Spent time(const std::function<void()>& operation);
  Spent time_graph(const std::function<void()>& operation);
  std::unique_ptr<machine::Event> mark() const;
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

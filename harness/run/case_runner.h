#pragma once
// One case from construction to its record.

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "harness/measure/limit.h"
#include "harness/measure/rates.h"
#include "harness/record/record.h"
#include "harness/run/run.h"
#include "harness/unit/unit.h"
#include "machine/link/link.h"
#include "machine/world/world.h"

namespace harness {

class CaseRunner {
 public:
  CaseRunner(machine::World& world, const RunOptions& options) : world_(world), options_(options) {}

  Rates& rates() { return rates_; }

  // Collective over the first plan.ranks ranks of the world. An exception of the unit on any rank
  // fails the case on all ranks. On the world's rank 0 record is complete. It is filled during the
  // case, so that it has the known part if this throws: machine::Timeout, machine::PeerFailure, or
  // any error after which the ranks are out of step.
  // on_block: SamplingLimits::on_block.
  void run(const PlannedCase& plan, int repetition, Record& record,
           const std::function<void(std::span<const double> times)>& on_block = {});

 private:
  machine::Link* sampling_link(const machine::Group& group);
  // Collective over the group.
  Limit slowest_limit(const machine::Group& group, const Limit& mine);
  // Measures the limit's rate again if the case was faster. `seconds` is that of the group's rank
  // 0.
  bool measure_again(const machine::Group& group, const Limit& limit, double seconds);

  machine::World& world_;
  const RunOptions& options_;
  Rates rates_;
  std::map<int, std::unique_ptr<machine::Link>> links_;  // by number of ranks; each made once
};

// Returns the record of a case that did not run.
Record skipped(const PlannedCase& plan, int repetition, std::string reason);

}  // namespace harness

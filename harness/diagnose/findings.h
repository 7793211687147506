#pragma once
// Collects the findings of health_of (health.h). health.cpp finds failures, slowness.cpp slow
// parts, failing_gpus.cpp what the driver reports.

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "harness/diagnose/health.h"
#include "harness/json/json.h"

namespace harness {

class Findings {
 public:
  // hosts: by rank; an empty or missing name is unknown.
  explicit Findings(std::vector<std::string> hosts) : hosts_(std::move(hosts)) {}

  void add(Level level, std::string kind, std::vector<int> ranks, std::string evidence);
  // Warnings of ranks, each with its evidence. If all ranks of one of several hosts are reported,
  // the host gets one warning.
  void add_ranks(const std::string& kind, const std::map<int, std::string>& evidence);

  const std::vector<Finding>& all() const { return all_; }

 private:
  const std::string& host(int rank) const;

  std::vector<std::string> hosts_;
  std::vector<Finding> all_;
};

void find_slow(const RunFile& run, Findings& findings);
// environment: environment.json.
void find_failing_gpus(const Json& environment, Findings& findings);

}  // namespace harness

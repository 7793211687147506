#pragma once
// What health_of (health.h) collects on its way: what is wrong is found in health.cpp, what is only
// slow in slowness.cpp.

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "harness/diagnose/health.h"

namespace harness {

class Findings {
 public:
  // hosts: by rank; an empty name, or none, where it is not known.
  explicit Findings(std::vector<std::string> hosts) : hosts_(std::move(hosts)) {}

  void add(Level level, std::string kind, std::vector<int> ranks, std::string evidence);
  // Warnings of ranks, each with its evidence. Where all ranks of one host of several are among
  // them it is the host, with one warning.
  void add_ranks(const std::string& kind, const std::map<int, std::string>& evidence);

  const std::vector<Finding>& all() const { return all_; }

 private:
  const std::string& host(int rank) const;

  std::vector<std::string> hosts_;
  std::vector<Finding> all_;
};

void find_slow(const RunFile& run, Findings& findings);

}  // namespace harness

#pragma once
// The listener of a run. console.h prints it.

#include <cstddef>
#include <string>
#include <vector>

#include "harness/record/record.h"

namespace harness {

class Progress {
 public:
  virtual ~Progress() = default;
  virtual void start(std::size_t cases) = 0;
  virtual void case_started(const std::string& name) = 0;
  virtual void case_done(const Record& record) = 0;
  // records: all, without their samples.
  virtual void finish(const RunContext& context, const std::vector<Record>& records) = 0;
};

}  // namespace harness

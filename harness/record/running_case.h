#pragma once
// The case that a run is in, in a file `running` beside run.json: who can still say it when no rank
// is left.

#include <optional>
#include <string>

#include "harness/record/record.h"

namespace harness {

struct RunningCase {
  std::string process;  // "rank 0 (pid 17 on node1)", which wrote it
  std::string name;
};

// Of rank 0, as a case begins. That it can't be written is left to what must be.
void say_running(const std::string& directory, const std::string& name);
void say_none_runs(const std::string& directory);
std::optional<RunningCase> running_case(const std::string& directory);

// The record of a case that was lost with its ranks. Without a name, between cases, it is the
// launch that was lost.
Record lost_record(const std::string& name, const machine::Failure& failure);

}  // namespace harness

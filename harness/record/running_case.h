#pragma once
// The current case of a run, in a file `running` next to run.json. The file names the case even if
// all ranks are lost.

#include <optional>
#include <string>

#include "harness/record/record.h"

namespace harness {

struct RunningCase {
  std::string process;  // "rank 0 (pid 17 on node1)", which wrote it
  std::string name;
};

// Called on rank 0 when a case begins. Ignores write errors, because writing run.json reports them.
void say_running(const std::string& directory, const std::string& name);
void say_none_runs(const std::string& directory);
std::optional<RunningCase> running_case(const std::string& directory);

// Returns the record of a case that was lost with its ranks, with the axes of its name. An empty
// name, between cases, means the launch.
Record lost_record(const std::string& name, const machine::Failure& failure);

}  // namespace harness

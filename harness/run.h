#pragma once
// Runs planned cases on a world: warm-up, sampling, judging, records, with Google Benchmark as
// front.

#include <memory>
#include <string>
#include <vector>

#include "harness/record.h"
#include "harness/unit.h"
#include "machine/world/world.h"

namespace harness {

struct RunOptions {
  std::string out_dir;
  std::string command;
  Profile profile = Profile::quick;
  std::string data_file;
  std::uint64_t seed = 1234;
  double max_seconds_per_case = 1;        // of sampling
  std::vector<std::string> google_flags;  // --benchmark_…, as given
};

enum ExitCode : int { accepted = 0, case_failed = 1, usage = 2, environment = 3, rank_lost = 4 };

// What is told while running and at the end. Implementations: report/console.h.
class Progress {
 public:
  virtual ~Progress() = default;
  virtual void start(std::size_t cases) = 0;
  virtual void case_started(const std::string& name) = 0;
  virtual void case_done(const Record& record) = 0;
  virtual void finish(const RunContext& context, const std::vector<Record>& records) = 0;
};

// Collective over the world; every rank gets the same exit code. Only rank 0 writes and prints.
int run(machine::World& world, const std::vector<PlannedCase>& cases, const RunOptions& options,
        Progress& progress);

}  // namespace harness

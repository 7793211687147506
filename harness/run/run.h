#pragma once
// Runs planned cases on a world: warm-up, sampling, judging, records, with Google Benchmark as
// front.
//
//   std::unique_ptr<Sink> sink = write_to(context, directory);   // rank 0; may be null
//   return run(world, plan_cases(units, {profile, flags}), options, progress);
//
// Only rank 0 speaks to Google Benchmark; the others do what it says, so filters and repetitions
// cannot part them. A case of fewer ranks than the world runs on the first ones; the others wait in
// the world's barrier, asleep.

#include <cstdint>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "harness/record/record.h"
#include "harness/report/progress.h"
#include "harness/unit/unit.h"
#include "machine/world/world.h"

namespace harness {

// Where records go, on rank 0.
class Sink {
 public:
  virtual ~Sink() = default;
  virtual void started(const std::string&) {}          // a case of that name
  virtual void add(const Record& record) = 0;          // after every case
  virtual void finish(const RunContext& context) = 0;  // once, whatever the end
  virtual void measured(const RunContext&) {}          // whenever more rates are known
  // The watchdog ends the run, on a thread of its own: what is added later is dropped.
  virtual void abort(const machine::Failure&, const Record& /*lost*/) {}
};
// A run directory (record/run_json.h); continues: behind the cases that it holds. Throws as
// RunWriter does.
std::unique_ptr<Sink> write_to(const RunContext& context, const std::string& directory,
                               bool continues = false, machine::DiskFault* disk = nullptr);

class Injection;

struct RunOptions {
  RunContext context;            // of the launch; with the rates of one that is continued
  std::vector<Record> finished;  // rank 0's: cases of that one, which are not run again
  std::string data_file, load_file, save_file;
  std::uint64_t seed = 1234;
  double max_seconds_per_case = 1;  // of sampling
  // Of all cases together: none begins later, and they are run in turns.h's order. Infinity: in
  // their own.
  double max_seconds = std::numeric_limits<double>::infinity();
  Timing timing = Timing::sample;
  std::vector<std::string> google_flags;  // --benchmark_…, as given
  Sink* sink = nullptr;                   // rank 0's
  bool measure_rates = true;              // false: no limits, for tests
  Injection* injection = nullptr;         // this rank's; null: no faults
};

enum ExitCode : int { accepted = 0, case_failed = 1, usage = 2, environment = 3, rank_lost = 4 };

// The --benchmark_ flags ask Google Benchmark to print cases, or their list, to standard output:
// nothing else should.
bool google_benchmark_prints(const std::vector<std::string>& google_flags);

// What was measured cannot be written, or told (a full disk, a closed pipe).
class Unwritten : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Collective over the world; every rank gets the same exit code: accepted, case_failed (also for
// one of options.finished), or 128 plus the signal after SIGINT or SIGTERM, which end the run after
// the case at hand (130, 143; a second one ends the process at once). Only rank 0 writes and
// prints. Throws on every rank: UsageError (a
// --benchmark_ flag that is unknown, malformed or selects no case); machine::MachineError when a
// rank was lost (Timeout, PeerFailure): what was measured, the case at hand included, has reached
// the sink, the board says why, and the exit code is rank_lost. When sink or progress throw, the
// run ends there: rank 0 throws Unwritten, the others return environment.
int run(machine::World& world, const std::vector<PlannedCase>& cases, const RunOptions& options,
        Progress& progress);

}  // namespace harness

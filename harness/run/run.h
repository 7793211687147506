#pragma once
// Runs planned cases on a world: warm-up, sampling, judging, records, with Google Benchmark as
// front.
//
//   options.sink = &run_writer;  // rank 0; may be null
//   return run(world, plan_cases(units, {profile, flags}), options, progress);
//
// Only rank 0 calls Google Benchmark and directs the others, so filters and repetitions are the
// same on all ranks. A case of fewer ranks than the world runs on the first ranks. The others sleep
// in the world's barrier.

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "harness/record/record.h"
#include "harness/record/sink.h"
#include "harness/unit/unit.h"
#include "machine/world/world.h"

namespace harness {

class Injection;

// The prediction for a case on a cluster (--expect), in seconds. 0: no prediction.
struct Promise {
  double expected_s = 0;
  double specified_s = 0;  // by the peaks only
};

struct RunOptions {
  RunContext context;            // of the launch; a continued run keeps its rates
  std::vector<Record> finished;  // rank 0: cases of a continued run, which are not run again
  std::string data_file, load_file, save_file;
  LossReference reference;
  TrainingOptions training;
  std::uint64_t seed = 1234;
  double max_seconds_per_case = 1;  // of sampling
  // Time limit of all cases: no case begins later, and turns.h determines their order. Infinity:
  // the planned order.
  double max_seconds = std::numeric_limits<double>::infinity();
  Timing timing = Timing::sample;
  std::vector<std::string> google_flags;  // --benchmark_…, as given
  Sink* sink = nullptr;                   // rank 0
  bool measure_rates = true;              // false: no limits, for tests
  Injection* injection = nullptr;         // of this rank; null: no faults
  // Rank 0, for records whose times show the speed of the machine; empty: no expectation. floors:
  // the least accepted expected_fraction, by kind_of_case.
  std::function<Promise(const Record&)> promise;
  std::map<std::string, double> floors;
  std::vector<std::string> gpu_of_rank;  // rank 0: host and GPU; an empty text: no GPU
};

// environment: among others, all cases that communicate were skipped.
enum ExitCode : int { accepted = 0, case_failed = 1, usage = 2, environment = 3, rank_lost = 4 };

// The results cannot be written or printed (a full disk, a closed pipe).
class Unwritten : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Collective over the world. Every rank returns the same exit code: accepted, case_failed (also if
// one of options.finished failed, or a case is below its expectation), or 128 plus the signal after
// SIGINT or SIGTERM, which end the run after the current case (130, 143; a second signal ends the
// process at once). Only rank 0 writes and prints. Throws on every rank: UsageError for a
// --benchmark_ flag that is unknown, malformed or selects no case; machine::MachineError if a rank
// was lost (Timeout, PeerFailure). Then the results, including the current case, have reached the
// sink, the board has the reason, and the exit code is rank_lost. If sink or progress throw, the
// run ends: rank 0 throws Unwritten, the others return environment.
int run(machine::World& world, const std::vector<PlannedCase>& cases, const RunOptions& options,
        Progress& progress);

}  // namespace harness

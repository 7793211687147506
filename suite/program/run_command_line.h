#pragma once
// The command line of `run` and `scale`. Axis names are options (`shardmark list UNIT` shows them).

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "harness/record/run_json.h"
#include "harness/report/console.h"
#include "harness/run/inject.h"
#include "harness/run/run.h"
#include "harness/unit/sweep.h"
#include "suite/expectation/expectation.h"
#include "suite/program/scaling.h"

namespace suite {

// Returns an unused folder below results/runs: its name has the time and the host.
std::string default_out_dir();

struct RunCommandLine {
  std::vector<std::string> words;  // as given, without the program
  std::vector<std::string> units;
  harness::Profile profile = harness::Profile::quick;
  harness::AxisFlags axes;
  harness::RunOptions options;  // its files, sampling time, timing and Google Benchmark's flags
  std::string device = "host";
  harness::PlanRequest request() const;  // profile, axes and device
  std::string out_dir;                   // never empty after parsing
  bool out_dir_is_default = false;
  std::vector<std::string> data_path;  // --data-path: [WEIGHT] PREFIX ...
  std::string split;
  std::string hostfile;                       // empty: no hostfile
  std::string deepspeed_file, megatron_file;  // configurations; empty: none
  bool ignore_unknown_keys = false;
  std::optional<std::uint64_t> seed;  // empty: the configuration's, or harness::RunOptions'
  std::optional<double> timeout_s;    // empty: 60
  double patience_s() const { return timeout_s.value_or(60); }  // timeout of a rank's wait
  std::optional<double> max_minutes;                            // of the run; empty: the profile's
  double run_seconds() const;      // the resulting limit; infinity: no limit
  std::optional<Scaling> scaling;  // for `scale`
  std::string resume_dir;
  std::optional<harness::RunFile> continued;  // the run that --resume continues; `words` are its
  bool no_limits = false;
  std::string expect;                        // a cluster: compare times with its prediction
  Floors floors = default_floors();          // of its speed
  std::optional<TrainingConfig> configured;  // the first configuration of the files
  std::vector<harness::Fault> faults;
  harness::ConsoleOptions console;
  harness::Color color = harness::Color::automatic;
  bool prints_results = false;  // json or csv on stdout
};

// words: starting with `run` or `scale`. Returns no value after printing the help that the words
// request. Throws harness::UsageError naming the nearest valid word.
std::optional<RunCommandLine> parse_run_command_line(const std::vector<std::string>& words);

}  // namespace suite

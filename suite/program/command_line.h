#pragma once
// What the command line asks for. Axis names are flags (`shardmark list` shows them); an unknown
// flag, unit, value or profile is a harness::UsageError that names the nearest right one.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "harness/record/run_json.h"
#include "harness/run/inject.h"
#include "harness/run/run.h"
#include "harness/unit/sweep.h"
#include "suite/program/scaling.h"

namespace suite {

struct CommandLine {
  enum class Command { list, run, report, health, data, help };
  Command command = Command::help;
  std::string help;  // the text to print, for Command::help

  // run, list
  std::vector<std::string> units;
  harness::Profile profile = harness::Profile::quick;
  harness::AxisFlags axes;
  std::string device = "host";
  std::string out_dir;  // never empty for run
  bool out_dir_is_default = false;
  std::string data_file, load_file, save_file;
  std::string hostfile;                       // empty: none
  std::string deepspeed_file, megatron_file;  // configurations; empty: none
  bool ignore_unknown_keys = false;
  std::uint64_t seed = 1234;
  double timeout_s = 60;
  double max_seconds = 1;             // of sampling, for one case
  std::optional<double> max_minutes;  // of the run; none given: the profile's
  double run_seconds() const;         // what that comes to; infinity: without an end
  std::vector<std::string> words;     // of the command line, without the program
  std::optional<Scaling> scaling;     // of `scale`, which is a run with these cases alone
  std::string resume_dir;
  std::optional<harness::RunFile> continued;  // what --resume names: the words are its
  bool no_limits = false;
  harness::Timing timing = harness::Timing::sample;
  std::vector<harness::Fault> faults;
  std::vector<std::string> google_flags;

  std::string report_dir;  // report, health
  std::string text_file,
      token_files;  // data: what is read, and what the names of the pair begin with
};

CommandLine parse_command_line(int argc, char** argv);

}  // namespace suite

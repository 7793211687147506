#pragma once
// The commands of the program, in one table: dispatch, help, the manual page, completion and the
// nearest name come from it.
//
// A command takes main's argc and argv; argv[1] is its name. It prints its help on --help, returns
// the exit code, and throws harness::UsageError or machine::MachineError with one line of text. Its
// file is NAME_command.cpp.

#include <cstdio>
#include <span>
#include <string>
#include <string_view>

namespace suite {

struct Command {
  std::string_view name, about;
  int (*run)(int argc, char** argv);
  std::string_view takes_options_of = {};  // the command that parses the other words
};
std::span<const Command> commands();
// Returns nullptr for an unknown name.
const Command* find_command(std::string_view name);

inline constexpr std::string_view program_name =
    "benchmark and conformance suite for distributed training";
inline constexpr std::string_view program_about =
    "Measures and judges the software stack that trains large language models on many GPUs.";

// Runs the command that argv[1] names. Throws harness::UsageError naming the nearest.
int run_command(int argc, char** argv);

int run_units(int argc, char** argv);  // run and scale
int run_list(int argc, char** argv);
int run_predict(int argc, char** argv);
int run_report(int argc, char** argv);
int run_health(int argc, char** argv);
int run_data(int argc, char** argv);
int run_recipes(int argc, char** argv);
int run_version(int argc, char** argv);
int run_manual(int argc, char** argv);
int run_completion(int argc, char** argv);

namespace configuration {
int run_plan(int argc, char** argv);
}

namespace nccl_tests {
// Returns nccl_tests::wrong_values if values are wrong or the bandwidth is below
// $NCCL_TESTS_MIN_BW.
int run_collective(int argc, char** argv);
}  // namespace nccl_tests

// Writes report.html and junit.xml of a run directory. Returns a line that says why figures are
// missing, or empty. Throws as harness::read_run.
std::string write_reports(const std::string& directory);

// Prints the findings of a run directory. Returns harness::Level as an exit code, as health-check
// runners expect, or 3 with an error line if the directory cannot be read.
int print_health(const std::string& directory, std::FILE* out = stdout);

}  // namespace suite

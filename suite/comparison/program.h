#pragma once
// Runs another program to its end.

#include <string>
#include <utility>
#include <vector>

namespace suite::comparison {

using Assignments = std::vector<std::pair<std::string, std::string>>;

// Parses "NCCL_ALGO=Ring NCCL_PROTO=LL". `flag` is its name in messages. Throws
// harness::UsageError naming a word that is not NAME=VALUE.
Assignments parse_assignments(std::string_view flag, const std::string& text);

// Runs words[0] with this environment on top of ours, standard output and error into `log`, and
// returns its exit code (128 + signal when a signal ended it). SIGINT and SIGTERM are passed on to
// it, and remembered. Throws machine::MachineError when it cannot be started.
int run_program(const std::vector<std::string>& words, const Assignments& environment,
                const std::string& log);
// Returns the signal that run_program passed on, or 0.
int signal_passed_on();

// Returns a log's last line without control characters; empty if there is none.
std::string last_line_of(const std::string& log);

}  // namespace suite::comparison

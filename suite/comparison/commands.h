#pragma once
// The commands that compare runs. Each takes main's argc and argv (argv[1] is its name), returns
// the exit code, and throws harness::UsageError or machine::MachineError.

namespace suite::comparison {

// Returns harness::case_failed if a case became slower, a number changed, or a condition of
// --fail-on holds; harness::usage if the two sides are not comparable.
int run_compare(int argc, char** argv);

// Launches the same cases under two environments in turn until each case is decided. Returns the
// codes of run_compare, or 128 + signal when interrupted. Throws machine::MachineError if a launch
// fails.
int run_ab(int argc, char** argv);

// Stores runs over time in one file.
int run_history(int argc, char** argv);

}  // namespace suite::comparison

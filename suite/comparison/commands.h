#pragma once
// The commands that compare runs. Each takes main's argc and argv, of which argv[1] is its name,
// returns the exit code, and throws harness::UsageError or machine::MachineError.

namespace suite::comparison {

// harness::case_failed when a case became slower, a number changed, or what --fail-on names is
// there; harness::usage when the two sides are not comparable.
int run_compare(int argc, char** argv);

// The same cases under two environments, launched in turn until each is decided. The codes of
// run_compare; 128 + signal when interrupted. Throws machine::MachineError when a launch did not
// come to its end.
int run_ab(int argc, char** argv);

// Runs over time in one file.
int run_history(int argc, char** argv);

}  // namespace suite::comparison

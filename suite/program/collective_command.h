#pragma once
// `shardmark collective`: starts the ranks when nobody did, measures, prints the table, writes the
// JSON.

namespace suite::nccl_tests {

// Of nccl-tests: values were wrong, or the bandwidth below $NCCL_TESTS_MIN_BW. The other codes are
// harness::ExitCode's.
inline constexpr int wrong_values = 7;

// argv[1] is "collective". Throws harness::UsageError and machine::MachineError before anything is
// printed or written.
int run_collective(int argc, char** argv);

}  // namespace suite::nccl_tests

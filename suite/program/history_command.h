#pragma once
// `shardmark history`: runs over time in one file.

namespace suite::comparison {

// argv[1] is "history". Returns the exit code. Throws harness::UsageError, machine::MachineError.
int run_history(int argc, char** argv);

}  // namespace suite::comparison

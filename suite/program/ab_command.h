#pragma once
// `shardmark ab`: the same cases under two environments, launched in turn until each is decided.

namespace suite::comparison {

// argv[1] is "ab". Returns the exit code, as run_compare does; 128 + signal when interrupted.
// Throws harness::UsageError; machine::MachineError when a launch did not come to its end.
int run_ab(int argc, char** argv);

}  // namespace suite::comparison

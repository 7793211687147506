#pragma once
// Starts the ranks of a run, when nobody else did.

#include <string>
#include <vector>

namespace suite {

// Runs `command` as `ranks` ranks under mpiexec (of PATH, or $SHARDMARK_MPIEXEC) and returns the
// run's exit code: the ranks' own, or harness::rank_lost when one of them was killed. SIGINT and
// SIGTERM are passed on to the ranks, which keep what was measured. Throws machine::MachineError
// when there is no mpiexec.
int launch(int ranks, const std::vector<std::string>& command);

}  // namespace suite

#pragma once
// Starts the ranks of a run, when nobody else did.

#include <string>
#include <vector>

#include "suite/files/hostfile.h"

namespace suite {

// Runs `command` as `ranks` ranks under the launcher of the MPI library that the program is built
// on (mpiexec.mpich, mpirun.openmpi; of PATH, or $SHARDMARK_MPIEXEC) and returns the run's exit
// code: the ranks' own, or harness::rank_lost when one of them was killed. SIGINT and SIGTERM are
// passed on to the ranks, which keep what was measured. `hosts`, filled in their order, or where
// the launcher puts the ranks by itself: this host, or those of a Slurm job. Throws
// machine::MachineError when there is no launcher, harness::UsageError when the hosts have fewer
// slots than there are ranks.
int launch(int ranks, const std::vector<std::string>& command,
           const std::vector<HostSlots>& hosts = {});

// First thing in a rank: lets it hear the signals that launch() passes on. Open MPI's launcher
// answers SIGINT and SIGTERM by killing the ranks within a second, but hands SIGUSR1 and SIGUSR2
// on; those become SIGINT and SIGTERM again here.
void hear_passed_on_signals();

// What a rank ends with when all have agreed on the run's exit code. MPICH's launcher wants the
// code of every rank. Open MPI's kills the others as soon as one ends with another code than 0, so
// there rank 0 alone ends with it, after it has written the report.
int exit_code_of_rank(int rank, int code);

}  // namespace suite

#pragma once
// Starts the ranks of a run if no launcher has started them.

#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include "machine/world/world.h"
#include "suite/files/hostfile.h"

namespace suite {

// Runs this program with `words` as `ranks` ranks under the launcher of the program's MPI library
// (mpiexec.mpich or mpirun.openmpi in PATH, or $SHARDMARK_MPIEXEC). Returns the run's exit code:
// that of the ranks, or harness::rank_lost if a rank was killed. Passes SIGINT and SIGTERM on to
// the ranks, which keep their results. Fills `hosts` in order. Without hosts, the launcher places
// the ranks: on this host, or on those of a Slurm job. Throws machine::MachineError without a
// launcher, harness::UsageError if the hosts have fewer slots than ranks.
// launch_ranks: for planned_launch_ranks() of the ranks.
int launch(int ranks, const std::vector<std::string>& given,
           const std::vector<HostSlots>& hosts = {}, const std::vector<int>& launch_ranks = {});

// Returns whether launch() started this process. Otherwise the user's launcher started it, or no
// launcher did.
bool started_by_launch();
// Returns the launch_ranks of the launch() that started this process.
std::vector<int> planned_launch_ranks();

// Calls `handler` on these signals.
void handle_signals(std::initializer_list<int> signals, void (*handler)(int), int flags = 0);

// Makes a rank receive the signals that launch() passes on; call it first. Open MPI's launcher
// answers SIGINT and SIGTERM by killing the ranks within a second, but passes SIGUSR1 and SIGUSR2
// on. They become SIGINT and SIGTERM again here.
void hear_passed_on_signals();

// Runs `work` on every rank. All ranks get the first rank's error as an exit code, or 0; rank 0
// prints it.
int together(machine::World& world, const std::function<void()>& work);

// Returns the exit code of one rank for the run's exit code. MPICH's launcher needs the code from
// every rank. Open MPI's kills the other ranks as soon as one ends with a code other than 0, so
// only rank 0 ends with the code, after it has written the report.
int exit_code_of_rank(int rank, int code);

}  // namespace suite

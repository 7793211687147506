#pragma once
// Ranks as processes that mpiexec or srun started. One host: everything goes through shared memory
// and MPI only introduces the ranks to each other; several: the control plane is MPI too.

#include <memory>

#include "machine/world/world.h"

namespace machine {

// Initializes MPI; finalizes it when destroyed, unless a rank has failed (then MPI would wait for
// it forever). At most one in a process. Throws MachineError.
std::unique_ptr<World> make_mpi_world(double timeout_s);

// Whether a launcher started this process as one of its ranks.
bool under_launcher();

}  // namespace machine

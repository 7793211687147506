#pragma once
// Ranks as processes that mpiexec, mpirun or srun started. One host: everything goes through shared
// memory and MPI only introduces the ranks to each other; several: the control plane is MPI too.

#include <memory>
#include <string_view>

#include "machine/world/world.h"

namespace machine {

// The library that the program is built on (CMake's SHARDMARK_MPI).
enum class MpiLibrary { mpich, openmpi };
MpiLibrary mpi_library();
std::string_view name(MpiLibrary library);  // for people

// Initializes MPI; finalizes it when destroyed, unless a rank has failed (then MPI would wait for
// it forever). At most one in a process. Throws MachineError, also when the launcher belongs to
// another MPI library, whose ranks would not find each other.
std::unique_ptr<World> make_mpi_world(double timeout_s);

// Whether a launcher started this process as one of its ranks.
bool under_launcher();

}  // namespace machine

#pragma once
// Ranks as processes that mpiexec, mpirun or srun started. On one host, all communication uses
// shared memory, and MPI only introduces the ranks to each other. On several hosts, the control
// plane uses MPI too.

#include <memory>
#include <string_view>

#include "machine/world/world.h"

namespace machine {

// The MPI library of this build (CMake's SHARDMARK_MPI).
enum class MpiLibrary { mpich, openmpi };
MpiLibrary mpi_library();
std::string_view name(MpiLibrary library);  // for people

// Initializes MPI. The world's destructor finalizes it, unless a rank has failed: MPI would wait
// for that rank forever. At most one per process. Throws MachineError, also if the launcher belongs
// to another MPI library, because its ranks would not find each other.
std::unique_ptr<World> make_mpi_world(double timeout_s);

// Returns whether a launcher started this process as one of its ranks.
bool under_launcher();

}  // namespace machine

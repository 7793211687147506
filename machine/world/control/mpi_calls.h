#pragma once
// MPI's calls with their errors thrown, and communicators of groups.

#include <mpi.h>

#include "machine/world/group.h"

namespace machine {

// Throws MachineError with MPI's own words when code is not MPI_SUCCESS.
void check_mpi(int code, const char* call);

// A communicator whose ranks are the group's, in order, and whose errors are returned. Collective
// over the group, whose members are ranks of MPI_COMM_WORLD.
MPI_Comm make_communicator(const Group& group);

}  // namespace machine

#pragma once
// MPI's calls with their errors thrown, and communicators of groups.

#include <mpi.h>

#include "machine/world/control/wait.h"
#include "machine/world/group.h"

namespace machine {

// MPI counts are ints: a longer message goes in parts of this size, on one tag, in order.
inline constexpr std::size_t mpi_part_bytes = std::size_t{1} << 30;

// Throws MachineError with MPI's own words when code is not MPI_SUCCESS.
void check_mpi(int code, const char* call);
// Waits until the request is done.
void finish_mpi(MPI_Request& request, const Wait& wait, const Waiting& waiting,
                MPI_Status* status = MPI_STATUS_IGNORE);

// A communicator whose ranks are the group's, in order, and whose errors are returned. Collective
// over the group, whose members are ranks of MPI_COMM_WORLD.
MPI_Comm make_communicator(const Group& group);
// Frees it, unless MPI is finalized.
void free_communicator(MPI_Comm communicator);

}  // namespace machine

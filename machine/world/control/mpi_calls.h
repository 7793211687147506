#pragma once
// MPI calls that throw their errors, and communicators of groups.

#include <mpi.h>

#include "machine/world/control/wait.h"
#include "machine/world/group.h"

namespace machine {

// MPI counts are ints, so a longer message is sent in parts of this size, on one tag, in order.
inline constexpr std::size_t mpi_part_bytes = std::size_t{1} << 30;

// Throws MachineError with MPI's error text if code is not MPI_SUCCESS.
void check_mpi(int code, const char* call);
// Waits until the request is done.
void finish_mpi(MPI_Request& request, const Wait& wait, const Waiting& waiting,
                MPI_Status* status = MPI_STATUS_IGNORE);

// Creates a communicator that returns errors. Its ranks are the group's, in order. Collective over
// the group, whose members are ranks of MPI_COMM_WORLD. policy: of the wait for them. Only the
// first call for a group blocks inside MPI, without a timeout.
MPI_Comm make_communicator(const Group& group, const WaitPolicy& policy);
// Frees the communicator, unless MPI is finalized.
void free_communicator(MPI_Comm communicator);

}  // namespace machine

#include "machine/world/control/mpi_calls.h"

#include <fmt/format.h>

#include <map>
#include <string_view>
#include <vector>

#include "machine/base/error.h"

namespace machine {

void check_mpi(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char words[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, words, &length);
  throw MachineError(fmt::format("{}: {}", call, std::string_view(words, length)));
}

void finish_mpi(MPI_Request& request, const Wait& wait, const Waiting& waiting,
                MPI_Status* status) {
  const auto is_done = [&] {
    int done = 0;
    check_mpi(MPI_Test(&request, &done, status), "MPI_Test");
    return done != 0;
  };
  wait.polling(is_done, waiting);
}

namespace {

MPI_Comm create_of_group(const Group& group) {
  MPI_Group everybody = MPI_GROUP_NULL, members = MPI_GROUP_NULL;
  MPI_Comm result = MPI_COMM_NULL;
  MPI_Comm_group(MPI_COMM_WORLD, &everybody);
  MPI_Group_incl(everybody, group.size(), group.members.data(), &members);
  const int code = MPI_Comm_create_group(MPI_COMM_WORLD, members, group.members.front(), &result);
  MPI_Group_free(&members);
  MPI_Group_free(&everybody);
  check_mpi(code, "MPI_Comm_create_group");
  MPI_Comm_set_errhandler(result, MPI_ERRORS_RETURN);
  return result;
}

}  // namespace

MPI_Comm make_communicator(const Group& group, const WaitPolicy& policy) {
  // One of each group is kept, without messages, and copied: only copies are made without blocking.
  // Where ranks share cores, ranks that spin in MPI_Comm_create_group take many turns to end it.
  static std::map<std::vector<int>, MPI_Comm> kept;  // until MPI_Finalize
  const auto [place, is_new] = kept.try_emplace(group.members, MPI_COMM_NULL);
  if (is_new) place->second = create_of_group(group);
  MPI_Comm result = MPI_COMM_NULL;
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Comm_idup(place->second, &result, &request), "MPI_Comm_idup");
  finish_mpi(request, Wait(policy), {Operation::barrier, any_of_group});
  MPI_Comm_set_errhandler(result, MPI_ERRORS_RETURN);
  return result;
}

void free_communicator(MPI_Comm communicator) {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (!finalized) MPI_Comm_free(&communicator);
}

}  // namespace machine

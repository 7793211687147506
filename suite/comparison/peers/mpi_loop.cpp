// The timing loop of an MPI library (timing_loop.h). CMake builds it with the program's MPI;
// scripts/compare_mpi also with others.

#include <mpi.h>

#include "suite/comparison/peers/timing_loop.h"

namespace {

std::function<void()> call_of(const std::string& operation, float* in, float* out, long bytes,
                              int ranks) {
  const int count = static_cast<int>(bytes / 4), share = count / ranks;
  const MPI_Comm world = MPI_COMM_WORLD;
  if (operation == "all_reduce")
    return [=] { MPI_Allreduce(in, out, count, MPI_FLOAT, MPI_SUM, world); };
  if (operation == "all_gather")
    return [=] { MPI_Allgather(in, share, MPI_FLOAT, out, share, MPI_FLOAT, world); };
  if (operation == "reduce_scatter")
    return [=] { MPI_Reduce_scatter_block(in, out, share, MPI_FLOAT, MPI_SUM, world); };
  if (operation == "broadcast") return [=] { MPI_Bcast(out, count, MPI_FLOAT, 0, world); };
  if (operation == "reduce")
    return [=] { MPI_Reduce(in, out, count, MPI_FLOAT, MPI_SUM, 0, world); };
  if (operation == "all_to_all")
    return [=] { MPI_Alltoall(in, share, MPI_FLOAT, out, share, MPI_FLOAT, world); };
  if (operation == "gather")
    return [=] { MPI_Gather(in, share, MPI_FLOAT, out, share, MPI_FLOAT, 0, world); };
  if (operation == "scatter")
    return [=] { MPI_Scatter(in, share, MPI_FLOAT, out, share, MPI_FLOAT, 0, world); };
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  peers::Library library;
  MPI_Comm_rank(MPI_COMM_WORLD, &library.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &library.ranks);
  library.barrier = [] { MPI_Barrier(MPI_COMM_WORLD); };
  library.maximum = [](double* values, int count) {
    MPI_Allreduce(MPI_IN_PLACE, values, count, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  };
  library.call = [&](const std::string& operation, float* in, float* out, long bytes) {
    return call_of(operation, in, out, bytes, library.ranks);
  };
  const int code = peers::run(library, argc, argv);
  MPI_Finalize();
  return code;
}

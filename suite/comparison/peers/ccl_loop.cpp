// The timing loop of oneCCL (timing_loop.h). Only scripts/compare_mpi compiles it: the program does
// not depend on oneCCL. MPI starts the ranks and takes the maximum.

#include <mpi.h>

#include <oneapi/ccl.hpp>

#include "suite/comparison/peers/timing_loop.h"

namespace {

std::function<void()> call_of(const ccl::communicator& world, const std::string& operation,
                              float* in, float* out, long bytes) {
  const auto count = static_cast<std::size_t>(bytes / 4);
  const std::size_t share = count / static_cast<std::size_t>(world.size());
  const std::vector<std::size_t> shares(static_cast<std::size_t>(world.size()), share);
  const auto sum = ccl::reduction::sum;
  if (operation == "all_reduce")
    return [=, &world] { ccl::allreduce(in, out, count, sum, world).wait(); };
  if (operation == "all_gather")
    return [=, &world] { ccl::allgatherv(in, share, out, shares, world).wait(); };
  if (operation == "reduce_scatter")
    return [=, &world] { ccl::reduce_scatter(in, out, share, sum, world).wait(); };
  if (operation == "broadcast") return [=, &world] { ccl::broadcast(out, count, 0, world).wait(); };
  if (operation == "reduce")
    return [=, &world] { ccl::reduce(in, out, count, sum, 0, world).wait(); };
  if (operation == "all_to_all")
    return [=, &world] { ccl::alltoall(in, out, share, world).wait(); };
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  int given = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &given);
  peers::Library library;
  MPI_Comm_rank(MPI_COMM_WORLD, &library.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &library.ranks);
  ccl::init();
  ccl::shared_ptr_class<ccl::kvs> store;
  ccl::kvs::address_type address;
  if (library.rank == 0) {
    store = ccl::create_main_kvs();
    address = store->get_address();
  }
  MPI_Bcast(address.data(), static_cast<int>(address.size()), MPI_BYTE, 0, MPI_COMM_WORLD);
  if (library.rank != 0) store = ccl::create_kvs(address);
  const ccl::communicator world = ccl::create_communicator(library.ranks, library.rank, store);
  library.barrier = [] { MPI_Barrier(MPI_COMM_WORLD); };
  library.maximum = [](double* values, int count) {
    MPI_Allreduce(MPI_IN_PLACE, values, count, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  };
  library.call = [&](const std::string& operation, float* in, float* out, long bytes) {
    return call_of(world, operation, in, out, bytes);
  };
  const int code = peers::run(library, argc, argv);
  MPI_Finalize();
  return code;
}

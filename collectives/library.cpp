#include "collectives/library.h"

#include <fmt/format.h>
#include <mpi.h>

#include <stdexcept>

#include "machine/link/mpi.h"

namespace collectives {
namespace {

using machine::Dtype;
using machine::Reduction;

// MPI calls operators without context; one thread of a process makes collective calls.
thread_local machine::Kernels* operator_kernels = nullptr;

template <Reduction reduction, Dtype dtype>
// NOLINTNEXTLINE(readability-non-const-parameter): MPI_User_function
void narrow_operator(void* in, void* inout, int* length, MPI_Datatype*) {
  operator_kernels->reduce(reduction, dtype, inout, in, inout, *length);
}

MPI_Op make_operator(MPI_User_function* function) {
  MPI_Op result = MPI_OP_NULL;
  machine::check_mpi(MPI_Op_create(function, 1, &result), "MPI_Op_create");
  return result;
}

MPI_Datatype datatype(Dtype dtype) {
  switch (dtype) {
    case Dtype::float32:
      return MPI_FLOAT;
    case Dtype::float64:
      return MPI_DOUBLE;
    default:
      return MPI_UINT16_T;
  }
}

MPI_Op operation_of(Dtype dtype, Reduction reduction) {
  if (dtype == Dtype::float32 || dtype == Dtype::float64)
    return reduction == Reduction::sum ? MPI_SUM : MPI_MAX;
  if (dtype == Dtype::bfloat16) {
    static const MPI_Op sum = make_operator(narrow_operator<Reduction::sum, Dtype::bfloat16>);
    static const MPI_Op max = make_operator(narrow_operator<Reduction::max, Dtype::bfloat16>);
    return reduction == Reduction::sum ? sum : max;
  }
  static const MPI_Op sum = make_operator(narrow_operator<Reduction::sum, Dtype::float16>);
  static const MPI_Op max = make_operator(narrow_operator<Reduction::max, Dtype::float16>);
  return reduction == Reduction::sum ? sum : max;
}

}  // namespace

void run_library(machine::Operation operation, machine::Link& link, machine::Kernels& kernels,
                 Dtype dtype, Reduction reduction, const void* input, void* output,
                 std::int64_t count) {
  const auto* mpi = dynamic_cast<const machine::MpiLink*>(&link);
  if (!mpi)
    throw std::invalid_argument(
        fmt::format("algorithm library needs transport mpi, not {}", name(link.transport())));
  operator_kernels = &kernels;
  const MPI_Datatype type = datatype(dtype);
  const MPI_Comm communicator = mpi->communicator();
  const int n = static_cast<int>(count);
  switch (operation) {
    case machine::Operation::all_reduce:
      machine::check_mpi(MPI_Allreduce(input == output ? MPI_IN_PLACE : input, output, n, type,
                                       operation_of(dtype, reduction), communicator),
                         "MPI_Allreduce");
      return;
    case machine::Operation::all_gather: {
      const auto* share =
          static_cast<const std::byte*>(output) +
          static_cast<std::size_t>(link.rank()) * static_cast<std::size_t>(count) * size_of(dtype);
      machine::check_mpi(MPI_Allgather(input == share ? MPI_IN_PLACE : input, n, type, output, n,
                                       type, communicator),
                         "MPI_Allgather");
      return;
    }
    case machine::Operation::reduce_scatter:
      machine::check_mpi(MPI_Reduce_scatter_block(input, output, n, type,
                                                  operation_of(dtype, reduction), communicator),
                         "MPI_Reduce_scatter_block");
      return;
    default:
      throw std::invalid_argument(fmt::format("{} has no library form", name(operation)));
  }
}

}  // namespace collectives

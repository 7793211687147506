#include "collectives/communicator/library.h"

#include <fmt/format.h>
#include <mpi.h>

#include <cstring>
#include <limits>
#include <memory>
#include <stdexcept>
#include <vector>

#include "collectives/plan.h"
#include "machine/link/faulty_link.h"
#include "machine/link/mpi.h"
#include "machine/world/control/mpi_calls.h"

namespace collectives {
namespace {

using machine::Dtype;
using machine::Reduction;

// MPI calls operators without a context argument. One thread of a process makes collective calls.
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
  const MPI_Datatype types[] = {MPI_FLOAT,   MPI_UINT16_T, MPI_UINT16_T, MPI_DOUBLE,
                                MPI_UINT8_T, MPI_UINT8_T,  MPI_INT8_T,   MPI_UINT8_T,
                                MPI_INT32_T, MPI_UINT32_T, MPI_INT64_T,  MPI_UINT64_T};
  return types[static_cast<std::size_t>(dtype)];
}

// Indexed by Reduction. The caller divides the sum of avg.
template <Dtype dtype>
MPI_Op narrow_operation_of(Reduction reduction) {
  using enum Reduction;
  static const MPI_Op operations[] = {
      make_operator(narrow_operator<sum, dtype>), make_operator(narrow_operator<prod, dtype>),
      make_operator(narrow_operator<max, dtype>), make_operator(narrow_operator<min, dtype>),
      make_operator(narrow_operator<avg, dtype>)};
  return operations[static_cast<std::size_t>(reduction)];
}

MPI_Op operation_of(Dtype dtype, Reduction reduction) {
  if (dtype == Dtype::bfloat16) return narrow_operation_of<Dtype::bfloat16>(reduction);
  if (dtype == Dtype::float16) return narrow_operation_of<Dtype::float16>(reduction);
  if (dtype == Dtype::float8_e4m3) return narrow_operation_of<Dtype::float8_e4m3>(reduction);
  if (dtype == Dtype::float8_e5m2) return narrow_operation_of<Dtype::float8_e5m2>(reduction);
  const MPI_Op operations[] = {MPI_SUM, MPI_PROD, MPI_MAX, MPI_MIN, MPI_SUM};
  return operations[static_cast<std::size_t>(reduction)];
}

// The begins and lengths of the parts of a buffer. The caller checks that they fit an int. No part
// is longer than the elements that the busiest rank moves.
struct Parts {
  std::vector<int> counts, displacements;
};
template <class Begin>
Parts parts_of(int ranks, Begin begin) {
  Parts parts;
  for (int peer = 0; peer < ranks; ++peer) {
    parts.displacements.push_back(static_cast<int>(begin(peer)));
    parts.counts.push_back(static_cast<int>(begin(peer + 1) - begin(peer)));
  }
  return parts;
}

void run_mpi(const LibraryCall& call, machine::MpiLink& link, machine::Kernels& kernels,
             const void* input, void* output) {
  using enum machine::Operation;
  if (call.count > std::numeric_limits<int>::max())
    throw std::invalid_argument(
        fmt::format("algorithm library: {} elements exceed the range of an MPI count", call.count));
  operator_kernels = &kernels;
  const MPI_Datatype type = datatype(call.dtype);
  const MPI_Op op = operation_of(call.dtype, call.reduction);
  const MPI_Comm all = link.communicator();
  const int n = static_cast<int>(call.count), root = call.root, rank = link.rank();
  const void* in = call.in_place ? MPI_IN_PLACE : input;
  const auto check = [&](int code) {
    if (code != MPI_SUCCESS)  // formats text only for an error, because this is timed
      machine::check_mpi(code, fmt::format("MPI's {}", name(call.operation)).c_str());
  };
  const auto inside = link.in_library(call.operation, call.count * size_of(call.dtype));
  switch (call.operation) {
    case all_reduce:
      return check(MPI_Allreduce(in, output, n, type, op, all));
    case all_gather:
      return check(MPI_Allgather(in, n, type, output, n, type, all));
    case reduce_scatter: {
      if (!call.in_place) return check(MPI_Reduce_scatter_block(input, output, n, type, op, all));
      // MPI's form in place writes every rank's share to the start of the buffer.
      const std::size_t bytes = call.count * size_of(call.dtype);
      const auto share = std::make_unique_for_overwrite<std::byte[]>(bytes);
      check(MPI_Reduce_scatter_block(input, share.get(), n, type, op, all));
      std::memcpy(output, share.get(), bytes);
      return;
    }
    case broadcast:  // in one buffer, so the root copies its input
      if (rank == root && !call.in_place)
        std::memcpy(output, input, call.count * size_of(call.dtype));
      return check(MPI_Bcast(output, n, type, root, all));
    case reduce:
      return check(MPI_Reduce(in, output, n, type, op, root, all));
    case gather:
      return check(MPI_Gather(in, n, type, output, n, type, root, all));
    case scatter:
      return check(
          MPI_Scatter(input, n, type, call.in_place ? MPI_IN_PLACE : output, n, type, root, all));
    case all_to_all:
      return check(MPI_Alltoall(input, n, type, output, n, type, all));
    case all_to_all_v: {
      const TrafficMatrix& traffic = *call.traffic;
      const Parts out =
          parts_of(link.size(), [&](int peer) { return traffic.input_begin(rank, peer); });
      const Parts into =
          parts_of(link.size(), [&](int peer) { return traffic.output_begin(rank, peer); });
      return check(MPI_Alltoallv(input, out.counts.data(), out.displacements.data(), type, output,
                                 into.counts.data(), into.displacements.data(), type, all));
    }
    case send_receive: {
      const int ranks = link.size();
      return check(MPI_Sendrecv(input, n, type, (rank + 1) % ranks, 0, output, n, type,
                                (rank + ranks - 1) % ranks, 0, all, MPI_STATUS_IGNORE));
    }
    case barrier:
      return check(MPI_Barrier(all));
    case none:
      break;
  }
  throw std::invalid_argument(
      fmt::format("algorithm library does not support {}", name(call.operation)));
}

}  // namespace

void run_library(const LibraryCall& call, machine::Link& link, machine::Kernels& kernels,
                 const void* input, void* output) {
#if SHARDMARK_NCCL
  if (link.transport() == machine::Transport::nccl) return run_nccl(call, link, input, output);
#endif
  auto* mpi = dynamic_cast<machine::MpiLink*>(&machine::plain(link));
  if (!mpi)
    throw std::invalid_argument(fmt::format(
        "algorithm library requires transport mpi or nccl (got {})", name(link.transport())));
  run_mpi(call, *mpi, kernels, input, output);
  const Extent held = extents(call.operation, {link.rank(), link.size(), 1, call.root}).output;
  if (call.reduction == Reduction::avg && reduces(call.operation) && held != Extent::none)
    kernels.divide(call.dtype, output, call.count, link.size());
}

std::string why_not_nccl(machine::Operation operation, Reduction reduction, Dtype dtype, int ranks,
                         int compute_capability) {
  if (!reduces(operation)) return "";
  if (is_floating(dtype) && size_of(dtype) == 1 && compute_capability < 90)
    return fmt::format("NCCL reduces {} from sm_90 (got sm_{})", name(dtype), compute_capability);
  if (reduction != Reduction::avg || !is_floating(dtype) || (ranks & (ranks - 1)) == 0) return "";
  return fmt::format(
      "NCCL's avg multiplies by 1/{} before it adds, which rounds; only powers of two are compared "
      "with the exact average",
      ranks);
}

}  // namespace collectives

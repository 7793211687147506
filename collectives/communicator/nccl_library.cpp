// NCCL's own collectives (NCCL User Guide, "Collective Communication Functions").

#include <fmt/format.h>
#include <nccl.h>

#include <stdexcept>

#include "collectives/communicator/library.h"
#include "machine/link/nccl.h"

namespace collectives {
namespace {

// Indexed by Dtype and by Reduction.
constexpr ncclDataType_t datatypes[] = {ncclFloat32,    ncclBfloat16,   ncclFloat16, ncclFloat64,
                                        ncclFloat8e4m3, ncclFloat8e5m2, ncclInt8,    ncclUint8,
                                        ncclInt32,      ncclUint32,     ncclInt64,   ncclUint64};
constexpr ncclRedOp_t operations[] = {ncclSum, ncclProd, ncclMax, ncclMin, ncclAvg};

}  // namespace

void run_nccl(const LibraryCall& call, machine::Link& link, const void* input, void* output) {
  using enum machine::Operation;
  auto& nccl = dynamic_cast<machine::NcclLink&>(link);
  machine::Stream& stream = *link.stream();
  const cudaStream_t queue = nccl.queue();
  const ncclComm_t all = nccl.communicator();
  const ncclDataType_t type = datatypes[static_cast<std::size_t>(call.dtype)];
  const ncclRedOp_t op = operations[static_cast<std::size_t>(call.reduction)];
  const auto count = static_cast<std::size_t>(call.count);
  const std::size_t bytes = count * size_of(call.dtype);
  const int rank = link.rank(), ranks = link.size(), root = call.root;
  const auto* from = static_cast<const std::byte*>(input);
  auto* to = static_cast<std::byte*>(output);
  [[maybe_unused]] const auto share = [bytes](auto* whole, int index) {
    return whole + static_cast<std::size_t>(index) * bytes;
  };
  // Copies the rank's own share, which no message carries.
  const auto keep_own = [&](std::byte* target, const std::byte* source) {
    if (target != source) stream.copy(target, source, bytes);
  };
  nccl.make_current();
  switch (call.operation) {
    case all_reduce:
      return nccl.call("ncclAllReduce", -1, bytes,
                       [&] { return ncclAllReduce(input, output, count, type, op, all, queue); });
    case all_gather:
      return nccl.call("ncclAllGather", -1, bytes,
                       [&] { return ncclAllGather(input, output, count, type, all, queue); });
    case reduce_scatter:
      return nccl.call("ncclReduceScatter", -1, bytes, [&] {
        return ncclReduceScatter(input, output, count, type, op, all, queue);
      });
    case broadcast:
      return nccl.call("ncclBroadcast", -1, bytes,
                       [&] { return ncclBroadcast(input, output, count, type, root, all, queue); });
    case reduce:
      return nccl.call("ncclReduce", -1, bytes, [&] {
        return ncclReduce(input, output, count, type, op, root, all, queue);
      });
#if NCCL_VERSION_CODE >= 22800
    case gather:
      return nccl.call("ncclGather", root, bytes,
                       [&] { return ncclGather(input, output, count, type, root, all, queue); });
    case scatter:
      return nccl.call("ncclScatter", root, bytes,
                       [&] { return ncclScatter(input, output, count, type, root, all, queue); });
    case all_to_all:
      return nccl.call("ncclAlltoAll", -1, bytes,
                       [&] { return ncclAlltoAll(input, output, count, type, all, queue); });
#else
    case gather:
      nccl.group_of("a gather of ncclSend and ncclRecv", root, bytes, [&](auto keep) {
        if (rank != root) return keep(ncclSend(input, count, type, root, all, queue));
        for (int peer = 0; peer < ranks; ++peer)
          if (peer != root) keep(ncclRecv(share(to, peer), count, type, peer, all, queue));
      });
      if (rank == root) keep_own(share(to, root), from);
      return;
    case scatter:
      nccl.group_of("a scatter of ncclSend and ncclRecv", root, bytes, [&](auto keep) {
        if (rank != root) return keep(ncclRecv(output, count, type, root, all, queue));
        for (int peer = 0; peer < ranks; ++peer)
          if (peer != root) keep(ncclSend(share(from, peer), count, type, peer, all, queue));
      });
      if (rank == root) keep_own(to, share(from, root));
      return;
    case all_to_all:
      nccl.group_of("an all_to_all of ncclSend and ncclRecv", -1, bytes, [&](auto keep) {
        for (int peer = 0; peer < ranks; ++peer) {
          if (peer == rank) continue;
          keep(ncclSend(share(from, peer), count, type, peer, all, queue));
          keep(ncclRecv(share(to, peer), count, type, peer, all, queue));
        }
      });
      return keep_own(share(to, rank), share(from, rank));
#endif
    case all_to_all_v: {
      const TrafficMatrix& traffic = *call.traffic;
      const std::size_t size = size_of(call.dtype);
      const auto part = [size](auto* whole, std::int64_t begin) {
        return whole + static_cast<std::size_t>(begin) * size;
      };
      const auto elements = [&](int one, int other) {
        return static_cast<std::size_t>(traffic(one, other));
      };
      nccl.group_of("an all_to_all_v of ncclSend and ncclRecv", -1, bytes, [&](auto keep) {
        for (int peer = 0; peer < ranks; ++peer) {
          if (peer == rank) continue;
          if (elements(rank, peer) > 0)
            keep(ncclSend(part(from, traffic.input_begin(rank, peer)), elements(rank, peer), type,
                          peer, all, queue));
          if (elements(peer, rank) > 0)
            keep(ncclRecv(part(to, traffic.output_begin(rank, peer)), elements(peer, rank), type,
                          peer, all, queue));
        }
      });
      return stream.copy(part(to, traffic.output_begin(rank, rank)),
                         part(from, traffic.input_begin(rank, rank)), elements(rank, rank) * size);
    }
    case send_receive:
      if (ranks == 1) return keep_own(to, from);
      return nccl.group_of("ncclSend and ncclRecv", (rank + 1) % ranks, bytes, [&](auto keep) {
        keep(ncclSend(input, count, type, (rank + 1) % ranks, all, queue));
        keep(ncclRecv(output, count, type, (rank + ranks - 1) % ranks, all, queue));
      });
    case barrier:
      return nccl.call("ncclAllReduce", -1, 1, [&] {
        return ncclAllReduce(nccl.byte(0), nccl.byte(0), 1, ncclUint8, ncclMax, all, queue);
      });
    case none:
      break;
  }
  throw std::invalid_argument(
      fmt::format("algorithm library does not support {}", name(call.operation)));
}

}  // namespace collectives

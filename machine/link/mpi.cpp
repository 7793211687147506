#include "machine/link/mpi.h"

#include <fmt/format.h>

#include <algorithm>

#include "machine/base/error.h"
#include "machine/world/control/mpi_calls.h"

namespace machine {
namespace {

// MPI counts are ints: a longer message goes in parts of this size, on one tag, in order.
constexpr std::size_t part_bytes = std::size_t{1} << 30;

}  // namespace

MpiLink::MpiLink(Group group, MPI_Comm communicator, WaitPolicy policy)
    : Link(std::move(group)),
      communicator_(communicator),
      wait_(policy),
      peers_(static_cast<std::size_t>(size())) {}

MpiLink::~MpiLink() {
  try {
    flush();
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (!finalized) MPI_Comm_free(&communicator_);
  } catch (const MachineError&) {
    // A peer is gone; the run is ending with that peer's name already.
  }
}

Waiting MpiLink::waiting(int peer, std::uint64_t number, std::size_t bytes,
                         const char* for_what) const {
  return {operation(), group().members[static_cast<std::size_t>(peer)], number, bytes, for_what};
}

std::uint64_t MpiLink::do_send(int peer, const void* data, std::size_t bytes) {
  Peer& to = peers_[static_cast<std::size_t>(peer)];
  ++to.sent;
  std::size_t offset = 0;
  do {
    const std::size_t part = std::min(part_bytes, bytes - offset);
    MPI_Request request;
    check_mpi(MPI_Isend(static_cast<const std::byte*>(data) + offset, static_cast<int>(part),
                        MPI_BYTE, peer, 0, communicator_, &request),
              "MPI_Isend");
    to.sending.push_back({to.sent, request});
    offset += part;
  } while (offset < bytes);
  return to.sent;
}

void MpiLink::do_wait_sent(int peer, std::uint64_t number) {
  auto& sending = peers_[static_cast<std::size_t>(peer)].sending;
  while (!sending.empty() && sending.front().number <= number) {
    wait_.polling(
        [&] {
          int done = 0;
          check_mpi(MPI_Test(&sending.front().request, &done, MPI_STATUS_IGNORE), "MPI_Test");
          return done != 0;
        },
        waiting(peer, sending.front().number, 0, "take"));
    sending.pop_front();
  }
}

void MpiLink::do_receive(int peer, void* into, std::size_t bytes, Store) {
  const std::uint64_t number = ++peers_[static_cast<std::size_t>(peer)].received;
  std::size_t offset = 0;
  do {
    const std::size_t part = std::min(part_bytes, bytes - offset);
    MPI_Request request;
    MPI_Status status;
    check_mpi(MPI_Irecv(static_cast<std::byte*>(into) + offset, static_cast<int>(part), MPI_BYTE,
                        peer, 0, communicator_, &request),
              "MPI_Irecv");
    wait_.polling(
        [&] {
          int done = 0;
          check_mpi(MPI_Test(&request, &done, &status), "MPI_Test");
          return done != 0;
        },
        waiting(peer, number, bytes, "send"));
    int count = 0;
    MPI_Get_count(&status, MPI_BYTE, &count);
    if (static_cast<std::size_t>(count) != part)
      throw std::logic_error(fmt::format(
          "{} in group {}: expected {} bytes in message {} from rank {}, got {}", name(operation()),
          group().name, part, number, group().members[static_cast<std::size_t>(peer)], count));
    offset += part;
  } while (offset < bytes);
}

const void* MpiLink::do_receive_in_place(int peer, std::size_t bytes) {
  auto& landed = peers_[static_cast<std::size_t>(peer)].landed;
  if (landed.size() < bytes) landed.resize(bytes);
  do_receive(peer, landed.data(), bytes, Store::cached);
  return landed.data();
}

}  // namespace machine

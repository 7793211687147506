#include "machine/link/mpi.h"

#include <fmt/format.h>

#include <algorithm>

#include "machine/base/error.h"
#include "machine/world/control/mpi_calls.h"

namespace machine {

MpiLink::MpiLink(Group group, MPI_Comm communicator, WaitPolicy policy)
    : Link(std::move(group)), communicator_(communicator), wait_(policy), peers_(size()) {}

MpiLink::~MpiLink() {
  try {
    flush();
    free_communicator(communicator_);
  } catch (const MachineError&) {
    // A peer is lost. The run already ends with that failure.
  }
}

Waiting MpiLink::waiting(int peer, std::uint64_t number, std::size_t bytes,
                         const char* for_what) const {
  return {operation(), group().members[peer], number, bytes, for_what};
}

std::uint64_t MpiLink::do_send(int peer, const void* data, std::size_t bytes) {
  Peer& to = peers_[peer];
  ++to.sent;
  std::size_t offset = 0;
  do {
    const std::size_t part = std::min(mpi_part_bytes, bytes - offset);
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
  auto& sending = peers_[peer].sending;
  while (!sending.empty() && sending.front().number <= number) {
    finish_mpi(sending.front().request, wait_, waiting(peer, sending.front().number, 0, "take"));
    sending.pop_front();
  }
}

void MpiLink::do_start_receive(int peer, void* into, std::size_t bytes) {
  Peer& from = peers_[peer];
  SHARDMARK_CHECK(from.receiving.size(), ==, 0u);
  from.into = into;
  std::size_t offset = 0;
  do {
    const std::size_t part = std::min(mpi_part_bytes, bytes - offset);
    check_mpi(MPI_Irecv(static_cast<std::byte*>(into) + offset, static_cast<int>(part), MPI_BYTE,
                        peer, 0, communicator_, &from.receiving.emplace_back()),
              "MPI_Irecv");
    offset += part;
  } while (offset < bytes);
}

void MpiLink::do_receive(int peer, void* into, std::size_t bytes, Store) {
  Peer& from = peers_[peer];
  if (from.receiving.empty()) do_start_receive(peer, into, bytes);
  SHARDMARK_CHECK(from.into == into, ==, true);
  const std::uint64_t number = ++from.received;
  std::size_t offset = 0;
  for (MPI_Request& request : from.receiving) {
    const std::size_t part = std::min(mpi_part_bytes, bytes - offset);
    MPI_Status status;
    finish_mpi(request, wait_, waiting(peer, number, bytes, "send"), &status);
    int count = 0;
    MPI_Get_count(&status, MPI_BYTE, &count);
    if (static_cast<std::size_t>(count) != part)
      throw std::logic_error(
          fmt::format("{} in group {}: expected {} bytes in message {} from rank {}, got {}",
                      name(operation()), group().name, part, number, group().members[peer], count));
    offset += part;
  }
  from.receiving.clear();
}

const void* MpiLink::do_receive_in_place(int peer, std::size_t bytes) {
  auto& landed = peers_[peer].landed;
  if (landed.size() < bytes) landed.resize(bytes);
  do_receive(peer, landed.data(), bytes, Store::cached);
  return landed.data();
}

}  // namespace machine

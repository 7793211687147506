#include "machine/world/control/mpi_post.h"

#include <algorithm>

namespace machine {

void MpiPost::start_send(int to, const void* data, std::size_t bytes,
                         std::vector<MPI_Request>& requests) {
  for (std::size_t offset = 0; offset < bytes; offset += mpi_part_bytes)
    check_mpi(MPI_Isend(static_cast<const std::byte*>(data) + offset,
                        static_cast<int>(std::min(mpi_part_bytes, bytes - offset)), MPI_BYTE, to, 0,
                        communicator_, &requests.emplace_back(MPI_REQUEST_NULL)),
              "MPI_Isend");
}

void MpiPost::send(int to, std::string_view text, Operation during) {
  const std::uint64_t size = text.size();
  std::vector<MPI_Request> requests;
  start_send(to, &size, sizeof size, requests);
  start_send(to, text.data(), text.size(), requests);
  const Waiting waiting{during, to, ++texts_[to].sent, size, "take"};
  for (MPI_Request& request : requests) finish_mpi(request, wait_, waiting);
}

void MpiPost::receive_bytes(void* into, std::size_t bytes, const Waiting& waiting) {
  for (std::size_t offset = 0; offset < bytes; offset += mpi_part_bytes) {
    MPI_Request request = MPI_REQUEST_NULL;
    check_mpi(MPI_Irecv(static_cast<std::byte*>(into) + offset,
                        static_cast<int>(std::min(mpi_part_bytes, bytes - offset)), MPI_BYTE,
                        waiting.peer, 0, communicator_, &request),
              "MPI_Irecv");
    finish_mpi(request, wait_, waiting);
  }
}

std::string MpiPost::receive(int from, Operation during) {
  Waiting waiting{during, from, ++texts_[from].received, 0, "send"};
  std::uint64_t size = 0;
  receive_bytes(&size, sizeof size, waiting);
  waiting.bytes = size;
  std::string text(size, '\0');
  receive_bytes(text.data(), text.size(), waiting);
  return text;
}

void MpiPost::exchange_with_all(Operation during) {
  const int ranks = static_cast<int>(texts_.size());
  int rank = 0;
  MPI_Comm_rank(communicator_, &rank);
  const std::uint64_t nothing = 0;
  std::vector<MPI_Request> requests;
  for (int peer = 0; peer < ranks; ++peer)
    if (peer != rank) start_send(peer, &nothing, sizeof nothing, requests);
  for (int peer = 0; peer < ranks; ++peer)
    if (peer != rank) receive(peer, during);
  for (MPI_Request& request : requests)
    finish_mpi(request, wait_, {during, any_of_group, 0, 0, "take"});
}

}  // namespace machine

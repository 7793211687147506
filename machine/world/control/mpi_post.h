#pragma once
// A Post among ranks of several hosts: MPI's point-to-point messages. Only the main thread calls
// it.

#include <mpi.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "machine/world/control/mpi_calls.h"
#include "machine/world/control/post.h"

namespace machine {

class MpiPost final : public Post {
 public:
  // Takes ownership of the communicator, whose ranks are the world's.
  MpiPost(MPI_Comm communicator, int ranks, WaitPolicy policy)
      : communicator_(communicator), texts_(ranks), wait_(policy) {}
  ~MpiPost() override { free_communicator(communicator_); }
  MpiPost(const MpiPost&) = delete;
  MpiPost& operator=(const MpiPost&) = delete;
  void send(int to, std::string_view text, Operation during) override;
  std::string receive(int from, Operation during) override;
  // Sends to every other rank before it receives from any; collective over the world.
  void exchange_with_all(Operation during);

 private:
  struct Texts {
    std::uint64_t sent = 0, received = 0;
  };
  void start_send(int to, const void* data, std::size_t bytes, std::vector<MPI_Request>& requests);
  void receive_bytes(void* into, std::size_t bytes, const Waiting& waiting);

  MPI_Comm communicator_;
  std::vector<Texts> texts_;  // by rank; numbers them for the board
  Wait wait_;
};

}  // namespace machine

#pragma once
// The mpi transport: MPI's own point-to-point on a communicator of the group. Also gives access to
// the MPI library's collectives, with which ours are compared.

#include <mpi.h>

#include <deque>
#include <vector>

#include "machine/link/link.h"
#include "machine/world/control/wait.h"

namespace machine {

class MpiLink final : public Link {
 public:
  // Takes ownership of communicator, whose ranks are the group's, in order.
  MpiLink(Group group, MPI_Comm communicator, WaitPolicy policy);
  ~MpiLink() override;
  Transport transport() const override { return Transport::mpi; }
  MPI_Comm communicator() const { return communicator_; }
  // Keep the result while one of MPI's own collectives runs on communicator().
  Wait::InLibrary in_library(Operation operation, std::size_t bytes) {
    return {wait_.policy(), operation, ++library_calls_, bytes};
  }

 private:
  struct Sending {
    std::uint64_t number;
    MPI_Request request;
  };
  struct Peer {
    std::uint64_t sent = 0, received = 0;
    std::deque<Sending> sending;
    std::vector<MPI_Request> receiving;  // the parts of the message that has been started
    const void* into = nullptr;          // its place
    std::vector<std::byte> landed;       // buffer of receive_in_place
  };

  std::uint64_t do_send(int peer, const void* data, std::size_t bytes) override;
  void do_wait_sent(int peer, std::uint64_t number) override;
  std::uint64_t last_sent(int peer) const override { return peers_[peer].sent; }
  void do_start_receive(int peer, void* into, std::size_t bytes) override;
  void do_receive(int peer, void* into, std::size_t bytes, Store store) override;
  const void* do_receive_in_place(int peer, std::size_t bytes) override;
  void do_release(int) override {}

  Waiting waiting(int peer, std::uint64_t number, std::size_t bytes, const char* for_what) const;
  MPI_Comm communicator_;
  Wait wait_;
  std::vector<Peer> peers_;
  std::uint64_t library_calls_ = 0;
};

}  // namespace machine

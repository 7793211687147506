#pragma once
// A Post among ranks that map each other's memory: threads of a process, processes of a host.
//
// A pipe (one for each ordered pair) is a ring of bytes in the receiver's memory. A text goes
// through it as its length and its bytes, in parts when it is longer than the ring.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "machine/world/control/post.h"
#include "machine/world/control/wait.h"

namespace machine {

struct Pipe {
  static constexpr std::uint32_t capacity = 32768;    // divides 2^32, so that counters may wrap
  alignas(64) std::atomic<std::uint32_t> written{0};  // bytes, by the sender
  std::atomic<std::uint32_t> reader_sleeps{0};
  alignas(64) std::atomic<std::uint32_t> read{0};  // bytes, by the receiver
  std::atomic<std::uint32_t> writer_sleeps{0};
  alignas(64) std::array<std::byte, capacity> ring;
};

class PipePost final : public Post {
 public:
  // By rank of the world: the pipes that this rank reads and writes; its own are not used.
  PipePost(std::vector<Pipe*> from, std::vector<Pipe*> to, WaitPolicy policy)
      : from_(std::move(from)), to_(std::move(to)), texts_(from_.size()), wait_(policy) {}
  void send(int to, std::string_view text, Operation during) override;
  std::string receive(int from, Operation during) override;

 private:
  struct Texts {
    std::uint64_t sent = 0, received = 0;
  };
  void write(Pipe& pipe, std::string_view bytes, const Waiting& waiting) const;
  void read(Pipe& pipe, char* into, std::size_t bytes, const Waiting& waiting) const;

  std::vector<Pipe*> from_, to_;
  std::vector<Texts> texts_;  // by rank; numbers them for the board
  Wait wait_;
};

}  // namespace machine

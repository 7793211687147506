#include "collectives/execute.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>
#include <vector>

#include "machine/device/device.h"
#include "machine/world/binding.h"

namespace collectives {
namespace {

// The only rank of a link that runs. Its peer reads each message at once. Optionally the peer has
// posted a place for the message that is sent next.
class OfferingLink : public machine::Link {
 public:
  explicit OfferingLink(bool offers) : Link({"world", {0, 1}, 0}), offers_(offers) {}
  machine::Transport transport() const override { return machine::Transport::shared_memory; }

  std::vector<std::byte> sent, pushed;  // the bytes of all messages

 private:
  std::uint64_t do_send(int, const void* data, std::size_t bytes) override {
    sent.insert(sent.end(), static_cast<const std::byte*>(data),
                static_cast<const std::byte*>(data) + bytes);
    return ++number_;
  }
  void* do_posted(int, std::size_t bytes) override {
    if (!offers_) return nullptr;
    pushed.resize(at_ + bytes);
    return pushed.data() + at_;
  }
  std::uint64_t do_deliver(int, std::size_t bytes) override {
    at_ += bytes;
    return ++number_;
  }
  void do_wait_sent(int, std::uint64_t) override {}
  std::uint64_t last_sent(int) const override { return number_; }
  void do_receive(int, void*, std::size_t, machine::Store) override { throw std::logic_error(""); }
  const void* do_receive_in_place(int, std::size_t) override { throw std::logic_error(""); }
  void do_release(int) override {}

  bool offers_;
  std::size_t at_ = 0;
  std::uint64_t number_ = 0;
};

// Runs a direct broadcast of 1 MiB from rank 0 to rank 1. Returns the sent and the pushed bytes.
std::pair<std::vector<std::byte>, std::vector<std::byte>> broadcast(std::vector<std::byte>& input,
                                                                    bool in_place, bool offers) {
  const auto device = machine::make_host_device();
  const Algorithm& direct = find_algorithm(machine::Operation::broadcast, "direct");
  Execution execution({.algorithm = &direct,
                       .count = static_cast<std::int64_t>(input.size() / sizeof(float)),
                       .in_place = in_place},
                      0, 2, device->stream());
  std::vector<std::byte> output(input.size());
  OfferingLink link(offers);
  execution.run(link, machine::Reduction::sum, input.data(),
                in_place ? input.data() : output.data());
  EXPECT_EQ(link.total().bytes_sent, input.size());
  if (!in_place) {
    EXPECT_EQ(output, input);
  }
  return {link.sent, link.pushed};
}

TEST(Execution, OfABroadcastOffersThePlacesThatTheRootMayWriteTo) {
  const Algorithm& direct = find_algorithm(machine::Operation::broadcast, "direct");
  EXPECT_EQ(text(direct.plan({.rank = 1, .ranks = 2, .pieces = 4})),
            "post 0 output[2]; post 0 output[3]; receive 0 output[0]; receive 0 output[1]; "
            "receive 0 output[2]; receive 0 output[3]");
  EXPECT_EQ(text(direct.plan({.rank = 0, .ranks = 2, .pieces = 2, .in_place = true})),
            "send 1 input[0]; push 1 input[1]; copy input[0:2] -> output[0:2]");
}

TEST(Execution, OfARootInPlaceWritesHalfToItsPeer) {
  std::vector<std::byte> input(1 << 20);
  for (std::size_t i = 0; i < input.size(); ++i) input[i] = static_cast<std::byte>(i * 31 >> 8);
  const std::vector<std::byte> first(input.begin(), input.begin() + (1 << 19)),
      last(input.begin() + (1 << 19), input.end());
  EXPECT_EQ(broadcast(input, true, true), std::pair(first, last));
  EXPECT_EQ(broadcast(input, true, false), std::pair(input, std::vector<std::byte>()))
      << "the peer is late";
  EXPECT_EQ(broadcast(input, false, true), std::pair(input, std::vector<std::byte>()))
      << "the root copies its own output";
}

TEST(Execution, CountsTheBuffersOfItsHostOnly) {
  const auto device = machine::make_host_device();
  constexpr int ranks = 1024;
  // Of a share: the buffers of two ranks fit into the cache of any host, those of all never do.
  const auto count = static_cast<std::int64_t>(
      std::min<std::size_t>(500, machine::last_level_cache_bytes() / (2 * 4 * (ranks + 1))));
  const CallKey key{.algorithm = &find_algorithm(machine::Operation::all_gather, "direct"),
                    .count = count};
  EXPECT_EQ(Execution(key, 0, ranks, device->stream(), nullptr, 2).store(), machine::Store::cached);
  EXPECT_EQ(Execution(key, 0, ranks, device->stream()).store(), machine::Store::streaming);
}

}  // namespace
}  // namespace collectives

#include "machine/world/control/tree.h"

#include <gtest/gtest.h>

#include <bit>
#include <chrono>
#include <deque>
#include <map>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "machine/base/error.h"
#include "machine/world/control/pipe.h"
#include "machine/world/world.h"

namespace machine::control {
namespace {

// Texts of all ranks of one thread. A receive before its send would never end.
class Mailbox {
 public:
  explicit Mailbox(int ranks) : messages(static_cast<std::size_t>(ranks)) {}

  class Slot final : public Post {
   public:
    Slot(Mailbox& mailbox, int rank) : mailbox_(mailbox), rank_(rank) {}
    void send(int to, std::string_view text, Operation) override {
      mailbox_.texts[{rank_, to}].emplace_back(text);
      ++mailbox_.messages[static_cast<std::size_t>(rank_)];
      ++mailbox_.total;
    }
    std::string receive(int from, Operation) override {
      std::deque<std::string>& waiting = mailbox_.texts[{from, rank_}];
      if (waiting.empty()) throw std::logic_error("nothing was sent");
      std::string text = std::move(waiting.front());
      waiting.pop_front();
      ++mailbox_.messages[static_cast<std::size_t>(rank_)];
      return text;
    }

   private:
    Mailbox& mailbox_;
    int rank_;
  };
  Slot of(int rank) { return {*this, rank}; }

  std::map<std::pair<int, int>, std::deque<std::string>> texts;
  std::vector<int> messages;  // by rank: sent and received
  int total = 0;
};

// A group whose members are not in the world's order.
Group group_of(int ranks, int index) {
  Group group{"all", std::vector<int>(static_cast<std::size_t>(ranks)), index};
  std::iota(group.members.rbegin(), group.members.rend(), 0);
  return group;
}

int log2_of(int ranks) { return std::bit_width(static_cast<unsigned>(ranks - 1)); }

// All ranks of one call, one after the other: up the tree the last members first, then down it.
class OneCall : public testing::TestWithParam<int> {
 protected:
  void expect_cost(const Mailbox& mailbox, int messages_each, int total) {
    EXPECT_LE(*std::ranges::max_element(mailbox.messages), messages_each);
    EXPECT_LE(mailbox.total, total);
    for (const auto& [channel, left] : mailbox.texts) EXPECT_TRUE(left.empty());
  }
};

TEST_P(OneCall, AllGatherCostsLogarithmicMessagesARank) {
  const int ranks = GetParam();
  Mailbox mailbox(ranks);
  std::string gathered;
  for (int index = ranks; index-- > 0;) {
    const Group group = group_of(ranks, index);
    Mailbox::Slot post = mailbox.of(group.members[static_cast<std::size_t>(index)]);
    gathered = gather(post, group, std::to_string(index), Operation::all_gather);
    EXPECT_EQ(gathered.empty(), index > 0);
  }
  for (int index = 0; index < ranks; ++index) {
    const Group group = group_of(ranks, index);
    Mailbox::Slot post = mailbox.of(group.members[static_cast<std::size_t>(index)]);
    const std::vector<std::string> all =
        split(broadcast(post, group, 0, index == 0 ? gathered : "", Operation::all_gather));
    ASSERT_EQ(all.size(), static_cast<std::size_t>(ranks));
    for (const int one : {0, index, ranks - 1})
      ASSERT_EQ(all[static_cast<std::size_t>(one)], std::to_string(one));
  }
  expect_cost(mailbox, 2 * log2_of(ranks), 2 * (ranks - 1));
}

TEST_P(OneCall, BarrierCostsLogarithmicMessagesARank) {
  const int ranks = GetParam();
  Mailbox mailbox(ranks);
  for (int index = ranks; index-- > 0;) {
    const Group group = group_of(ranks, index);
    Mailbox::Slot post = mailbox.of(group.members[static_cast<std::size_t>(index)]);
    wait_for_all(post, group);
  }
  for (int index = 0; index < ranks; ++index) {
    const Group group = group_of(ranks, index);
    Mailbox::Slot post = mailbox.of(group.members[static_cast<std::size_t>(index)]);
    release_all(post, group);
  }
  expect_cost(mailbox, 2 * log2_of(ranks), 2 * (ranks - 1));
}

TEST_P(OneCall, BroadcastCostsLogarithmicMessagesARank) {
  const int ranks = GetParam();
  for (const int root : {0, 1, ranks / 2, ranks - 1}) {
    Mailbox mailbox(ranks);
    for (int place = 0; place < ranks; ++place) {
      const int index = (root + place) % ranks;
      const Group group = group_of(ranks, index);
      Mailbox::Slot post = mailbox.of(group.members[static_cast<std::size_t>(index)]);
      ASSERT_EQ(broadcast(post, group, root, index == root ? "text" : "", Operation::broadcast),
                "text");
    }
    expect_cost(mailbox, log2_of(ranks), ranks - 1);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, OneCall, testing::Values(2, 3, 8, 13, 64, 512, 4096),
                         testing::PrintToStringParamName());

TEST(BinomialTree, EveryMemberHasOneParent) {
  for (const int size : {1, 2, 3, 7, 8, 21})
    for (int root = 0; root < size; ++root) {
      std::vector<int> parents(static_cast<std::size_t>(size), -1);
      for (int index = 0; index < size; ++index)
        for (const int child : binomial_tree(size, index, root).children) {
          EXPECT_EQ(parents[static_cast<std::size_t>(child)], -1);
          parents[static_cast<std::size_t>(child)] = index;
        }
      for (int index = 0; index < size; ++index)
        EXPECT_EQ(binomial_tree(size, index, root).parent, parents[static_cast<std::size_t>(index)])
            << index << " of " << size << " below " << root;
      EXPECT_EQ(parents[static_cast<std::size_t>(root)], -1);
    }
}

// Texts shorter and longer than a pipe's ring, in parts that wrap around its end.
TEST(Pipe, TextsOfEveryLengthArriveInOrder) {
  run_ranks(3, [](World& world) {
    const int rank = world.rank();
    for (const std::size_t size :
         {std::size_t{0}, std::size_t{1}, std::size_t{Pipe::capacity} - 8,
          std::size_t{Pipe::capacity}, 3 * std::size_t{Pipe::capacity} + 5})
      for (int lap = 0; lap < 20; ++lap) {
        const std::string mine(size + static_cast<std::size_t>(rank),
                               static_cast<char>('a' + (lap + rank) % 26));
        const auto all = world.all_gather(world.group(), mine);
        for (int peer = 0; peer < 3; ++peer)
          ASSERT_EQ(all[static_cast<std::size_t>(peer)],
                    std::string(size + static_cast<std::size_t>(peer),
                                static_cast<char>('a' + (lap + peer) % 26)));
      }
  });
}

// Ranks without work wait for their next case as long as that takes.
TEST(Pipe, AWaitHasNoTimeoutWhileAllRanksLive) {
  run_ranks(
      2,
      [](World& world) {
        if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(400));
        world.barrier(world.group());
      },
      0.1);
}

TEST(Pipe, AFailedRankEndsAWaitForAnother) {
  int ended = 0;
  try {
    run_ranks(3, [&](World& world) {
      if (world.rank() == 2) throw MachineError("rank 2 lost its disk");
      try {
        world.all_gather(world.group(), 1);
      } catch (const PeerFailure&) {
        if (world.rank() == 1) ++ended;  // it waits for rank 0, which has not failed
        throw;
      }
    });
    FAIL();
  } catch (const MachineError& error) {
    EXPECT_STREQ(error.what(), "rank 2 lost its disk");
  }
  EXPECT_EQ(ended, 1);
}

}  // namespace
}  // namespace machine::control

#include "machine/link/link.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <vector>

#include "machine/base/error.h"
#include "machine/device/device_wait.h"
#include "machine/device/random.h"
#include "machine/link/connect.h"
#include "machine/link/faulty_link.h"
#include "machine/link/shared_memory.h"
#include "machine/world/control/wait.h"
#include "machine/world/world.h"

namespace machine {
namespace {

std::vector<unsigned char> pattern(int from, int to, int number, std::size_t bytes) {
  std::vector<unsigned char> data(bytes);
  for (std::size_t i = 0; i < bytes; ++i)
    data[i] = static_cast<unsigned char>(
        philox(static_cast<std::uint64_t>(from * 1000 + to * 100 + number), i)[0]);
  return data;
}

const std::size_t sizes[] = {0,    1,           inline_bytes,    inline_bytes + 1,
                             1000, eager_bytes, eager_bytes + 1, 100'003};

// Every pair exchanges messages of every size, several laps of the ring.
TEST(SharedMemoryLink, EveryMessageArrivesWholeAndInOrder) {
  for (const int ranks : {2, 3, 5})
    run_ranks(ranks, [&](World& world) {
      const auto link = connect(world, world.group(), Transport::shared_memory);
      int number = 0;
      for (int lap = 0; lap < 20; ++lap)
        for (const std::size_t bytes : sizes) {
          ++number;
          std::vector<std::vector<unsigned char>> sent;
          for (int peer = 0; peer < ranks; ++peer) {
            sent.push_back(pattern(world.rank(), peer, number, bytes));
            if (peer == world.rank()) continue;
            EXPECT_EQ(link->send(peer, sent.back().data(), bytes),
                      static_cast<std::uint64_t>(number));
          }
          for (int peer = 0; peer < ranks; ++peer) {
            if (peer == world.rank()) continue;
            std::vector<unsigned char> got(bytes);
            if (lap % 2 == 0) {
              link->receive(peer, got.data(), bytes);
            } else {
              const void* data = link->receive_in_place(peer, bytes);
              if (bytes > 0) std::memcpy(got.data(), data, bytes);
              link->release(peer);
            }
            ASSERT_EQ(got, pattern(peer, world.rank(), number, bytes))
                << bytes << " bytes from " << peer;
          }
          link->flush();
        }
    });
}

TEST(SharedMemoryLink, CountsEveryByteUnderItsLabel) {
  run_ranks(2, [](World& world) {
    const auto link = connect(world, world.group(), Transport::shared_memory);
    const int peer = 1 - world.rank();
    std::vector<char> data(3000), got(3000);
    link->count_as({Operation::all_gather, Dtype::bfloat16});
    link->send(peer, data.data(), 3000);
    link->receive(peer, got.data(), 3000);
    link->count_as({Operation::all_reduce, Dtype::float32});
    for (int i = 0; i < 3; ++i) {
      link->send(peer, data.data(), 7);
      link->receive(peer, got.data(), 7);
    }
    EXPECT_EQ(link->traffic().at({Operation::all_gather, Dtype::bfloat16}),
              (Traffic{3000, 1, 3000, 1}));
    EXPECT_EQ(link->traffic().at({Operation::all_reduce, Dtype::float32}), (Traffic{21, 3, 21, 3}));
    EXPECT_EQ(link->total(), (Traffic{3021, 4, 3021, 4}));
    link->reset_traffic();
    EXPECT_EQ(link->total(), Traffic{});
  });
}

// A sender may run ahead of its receiver until the ring is full. Then it waits, and no message is
// lost.
TEST(SharedMemoryLink, ASenderThatRunsAheadWaits) {
  run_ranks(2, [](World& world) {
    const auto link = connect(world, world.group(), Transport::shared_memory);
    constexpr int messages = 1000;
    for (int i = 0; i < messages; ++i) {
      if (world.rank() == 0) {
        link->send(1, &i, sizeof i);
      } else {
        int got = -1;
        link->receive(0, &got, sizeof got);
        ASSERT_EQ(got, i);
      }
    }
  });
}

// The sender writes into the place that the receiver has posted. Without a posted place, it sends
// the message.
TEST(SharedMemoryLink, AMessageIsDeliveredToThePostedPlace) {
  run_ranks(2, [](World& world) {
    const auto link = connect(world, world.group(), Transport::shared_memory);
    const int peer = 1 - world.rank();
    constexpr std::size_t bytes = 20'000;
    for (int lap = 0; lap < 100; ++lap) {
      std::vector<unsigned char> first(bytes), second(bytes);
      link->post(peer, 2, second.data(), bytes);
      const auto one = pattern(world.rank(), peer, 2 * lap, bytes);
      const auto two = pattern(world.rank(), peer, 2 * lap + 1, bytes);
      ASSERT_EQ(link->posted(peer, bytes), nullptr);
      link->send(peer, one.data(), bytes);
      link->receive(peer, first.data(), bytes);  // the peer's post is now visible
      ASSERT_EQ(link->posted(peer, bytes - 1), nullptr);
      void* there = link->posted(peer, bytes);
      ASSERT_NE(there, nullptr);
      std::memcpy(there, two.data(), bytes);
      link->deliver(peer, bytes);
      link->receive(peer, second.data(), bytes);
      ASSERT_EQ(first, pattern(peer, world.rank(), 2 * lap, bytes));
      ASSERT_EQ(second, pattern(peer, world.rank(), 2 * lap + 1, bytes));
      link->flush();
    }
    EXPECT_EQ(link->total(), (Traffic{200 * bytes, 200, 200 * bytes, 200}));
  });
}

// The sender runs ahead of its receivers: it sends more messages than it has copies.
TEST(SharedMemoryLink, AMessageToAllArrivesWholeAndInOrder) {
  constexpr int ranks = 4, messages = 20;
  run_ranks(ranks, [](World& world) {
    const auto link = connect(world, world.group(), Transport::shared_memory);
    const int rank = world.rank();
    const std::vector<int> peers = {(rank + 3) % ranks, (rank + 1) % ranks};
    std::size_t sent = 0;
    std::uint64_t number = 0;
    for (const std::size_t bytes : sizes) {
      std::vector<std::vector<unsigned char>> data;
      for (int i = 0; i < messages; ++i) {
        data.push_back(pattern(rank, 9, i, bytes));
        std::vector<std::uint64_t> numbers(2);
        link->send_to_all(peers, data.back().data(), bytes, numbers);
        EXPECT_EQ(numbers, std::vector<std::uint64_t>(2, ++number));
      }
      sent += 2 * messages * bytes;
      for (const int peer : {(rank + 1) % ranks, (rank + 3) % ranks})
        for (int i = 0; i < messages; ++i) {
          std::vector<unsigned char> got(bytes);
          link->receive(peer, got.data(), bytes);
          ASSERT_EQ(got, pattern(peer, 9, i, bytes)) << bytes << " bytes from " << peer;
        }
      link->flush();
    }
    EXPECT_EQ(link->total().bytes_sent, sent);
    EXPECT_EQ(link->total().messages_sent, 2 * messages * std::size(sizes));
  });
}

TEST(SharedMemoryLink, PeersReadOneCopyOfAMessageToAll) {
  std::atomic<const void*> read[3] = {};
  run_ranks(3, [&](World& world) {
    const auto link = connect(world, world.group(), Transport::shared_memory);
    const std::vector<int> peers = {1, 2};
    for (const std::size_t bytes : {inline_bytes + 1, eager_bytes}) {
      const auto data = pattern(0, 9, 1, bytes);
      if (world.rank() == 0) {
        std::vector<std::uint64_t> numbers(2);
        link->send_to_all(peers, data.data(), bytes, numbers);
      } else {
        read[world.rank()] = link->receive_in_place(0, bytes);
        EXPECT_EQ(std::memcmp(read[world.rank()], data.data(), bytes), 0);
        link->release(0);
      }
      world.barrier(world.group());
      EXPECT_EQ(read[1].load(), read[2].load());
      EXPECT_NE(read[1].load(), data.data());
      world.barrier(world.group());
    }
  });
}

// Three ranks share the cores of a host with two.
TEST(SharedMemoryLink, ALentMessageIsReadInPlaceIfRanksShareCores) {
  std::atomic<bool> rewritten = false;
  run_ranks(3, [&](World& world) {
    const auto link = connect(world, world.group(), Transport::shared_memory);
    for (const std::size_t bytes : {inline_bytes, std::size_t{2048}, eager_bytes}) {
      if (world.rank() == 0) rewritten = false;
      world.barrier(world.group());
      const auto before = pattern(0, 1, 1, bytes), after = pattern(0, 1, 2, bytes);
      if (world.rank() == 0) {
        auto data = before;
        const std::uint64_t number = link->lend(1, data.data(), bytes);
        data = after;
        rewritten = true;
        link->wait_sent(1, number);
      } else if (world.rank() == 1) {
        while (!rewritten) std::this_thread::yield();
        std::vector<unsigned char> got(bytes);
        link->receive(0, got.data(), bytes);
        EXPECT_EQ(got, link->shares_cores() && bytes > 2048 ? after : before) << bytes;
      }
      world.barrier(world.group());
    }
    if (world.rank() == 0) {
      EXPECT_EQ(link->total().messages_sent, 3u);
    }
  });
}

TEST(SharedMemoryLink, AMessageToAllOutlivesItsLink) {
  std::atomic<bool> closed = false;
  run_ranks(3, [&](World& world) {
    auto link = connect(world, world.group(), Transport::shared_memory);
    const auto data = pattern(0, 9, 1, 1000);
    if (world.rank() == 0) {
      const std::vector<int> peers = {1, 2};
      std::vector<std::uint64_t> numbers(2);
      link->send_to_all(peers, data.data(), data.size(), numbers);
      link.reset();
      closed = true;
    } else {
      while (!closed) std::this_thread::yield();
      std::vector<unsigned char> got(data.size());
      link->receive(0, got.data(), got.size());
      EXPECT_EQ(got, data);
    }
  });
}

TEST(SharedMemoryLink, UnequalSizesAreRejectedByName) {
  try {
    run_ranks(2, [](World& world) {
      const auto link = connect(world, world.group(), Transport::shared_memory);
      char data[16] = {};
      if (world.rank() == 0) {
        link->send(1, data, 16);
      } else {
        link->receive(0, data, 8);
      }
    });
    FAIL();
  } catch (const std::logic_error& error) {
    EXPECT_NE(std::string(error.what())
                  .find("rank 1 expects 8 bytes in message 1 from rank 0, which sent 16"),
              std::string::npos)
        << error.what();
  }
}

TEST(SharedMemoryLink, AFaultAffectsOneRankOnly) {
  run_ranks(3, [](World& world) {
    if (world.rank() == 1)
      world.faults().corrupt_messages.push_back({1, 0, 3, [] { return true; }});
    const auto link = connect(world, world.group(), Transport::shared_memory);
    EXPECT_EQ(&plain(*link) == link.get(), world.rank() != 1);
    const char mine = 0;
    for (int peer = 0; peer < 3; ++peer)
      if (peer != world.rank()) link->send(peer, &mine, 1);
    for (int peer = 0; peer < 3; ++peer) {
      if (peer == world.rank()) continue;
      char got = -1;
      link->receive(peer, &got, 1);
      EXPECT_EQ(got, world.rank() == 1 && peer == 0 ? 8 : 0);
    }
  });
}

TEST(SharedMemoryLink, GroupsDoNotMix) {
  run_ranks(4, [](World& world) {
    const bool odd = world.rank() % 2 == 1;
    const Group pair{"pair", odd ? std::vector<int>{1, 3} : std::vector<int>{0, 2},
                     world.rank() / 2};
    const auto link = connect(world, pair, Transport::shared_memory);
    const auto everybody = connect(world, world.group(), Transport::shared_memory);
    int mine = world.rank(), got = -1;
    link->send(1 - pair.index, &mine, sizeof mine);
    everybody->send((world.rank() + 1) % 4, &mine, sizeof mine);
    everybody->receive((world.rank() + 3) % 4, &got, sizeof got);
    EXPECT_EQ(got, (world.rank() + 3) % 4);
    link->receive(1 - pair.index, &got, sizeof got);
    EXPECT_EQ(got, (world.rank() + 2) % 4);
  });
}

// If a rank hangs outside of a wait, the board shows its last wait, however short.
TEST(Wait, TheLastWaitStaysOnTheBoard) {
  RankStatus statuses[2];
  Board board(0, {&statuses[0], &statuses[1]});
  const Wait wait({&board});
  EXPECT_EQ(board.waiting(0), "not waiting");
  int looks = 0;
  wait.polling([&] { return ++looks == 2; }, {Operation::all_reduce, 1, 7, 64});
  EXPECT_EQ(board.waiting(0),
            "not waiting; it was last in all_reduce, with rank 1 at message 7 (64 bytes)");
}

TEST(Wait, WaitsForDevicesAndLibrariesAreOnTheBoard) {
  RankStatus statuses[2];
  Board board(0, {&statuses[0], &statuses[1]});
  const Wait wait({&board});
  {
    const Wait::InLibrary inside({&board}, Operation::all_reduce, 4, 64);
    wait.queued({Operation::all_gather, 1, 9, 8});  // by another thread
    EXPECT_EQ(board.waiting(0), "in all_reduce, waiting for its group at message 4 (64 bytes)");
  }
  EXPECT_EQ(board.waiting(0),
            "not waiting; it was last in all_reduce, with its group at message 4 (64 bytes)");
  wait.queued({Operation::all_gather, 1, 9, 8});
  const std::unique_ptr<Device> device = make_host_device();
  device->count_waits_in(&statuses[0].on_device);
  {
    const DeviceWait waits(*device);
    EXPECT_EQ(board.waiting(0),
              "waiting for its device; it was last in all_gather, with rank 1 at message 9 "
              "(8 bytes)");
  }
  EXPECT_EQ(board.waiting(0),
            "not waiting; it was last in all_gather, with rank 1 at message 9 (8 bytes)");
}

// One thread of the rank sleeps. Later waits of its other threads do not hide this wait.
TEST(Wait, ASleepingThreadStaysOnTheBoard) {
  RankStatus statuses[3];
  Board board(0, {&statuses[0], &statuses[1], &statuses[2]});
  const Wait wait({&board});
  std::atomic<std::uint32_t> word{0}, sleeping{0};
  std::jthread sleeper([&] {
    wait.until_reached(word, 1, sleeping, {Operation::all_gather, 2, 3, 4096});
  });
  const auto shown = [&] {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (board.waiting(0) != "in all_gather, waiting for rank 2 at message 3 (4096 bytes)")
      if (std::chrono::steady_clock::now() > end) return board.waiting(0);
    return std::string("shown");
  };
  EXPECT_EQ(shown(), "shown");
  int looks = 0;
  wait.polling([&] { return ++looks == 2; }, {Operation::all_reduce, 1, 7, 64});
  EXPECT_EQ(board.waiting(0), "in all_gather, waiting for rank 2 at message 3 (4096 bytes)");
  looks = 0;  // so many that this thread sleeps, too
  wait.polling([&] { return ++looks == 1200; }, {Operation::all_reduce, 1, 8, 64});
  EXPECT_EQ(shown(), "shown");
  Wait::publish(word, 1, sleeping);
}

}  // namespace
}  // namespace machine

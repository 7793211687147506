// Detection of slow pairs: in made-up matrices, and on threads with one delayed link.

#include "suite/machine/slow_pairs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>

#include "machine/link/connect.h"
#include "machine/world/world.h"
#include "suite/machine/pair_meter.h"
#include "suite/machine/tournament.h"

namespace suite {
namespace {

using harness::LinkMatrix;

// 10 GB/s and 1 us within a host, 2 GB/s and 20 us between hosts, with small deviations.
LinkMatrix matrix_of(const std::vector<std::string>& hosts) {
  LinkMatrix matrix;
  matrix.hosts = hosts;
  const int ranks = matrix.ranks();
  for (int from = 0; from < ranks; ++from)
    for (int to = 0; to < ranks; ++to) {
      const bool within =
          hosts[static_cast<std::size_t>(from)] == hosts[static_cast<std::size_t>(to)];
      const double off = from == to ? 0 : 1 + 0.01 * ((3 * from + 5 * to) % 7);
      matrix.bandwidth_GBps.push_back(off * (within ? 10 : 2));
      matrix.latency_us.push_back(off * (within ? 1 : 20));
    }
  return matrix;
}

std::vector<LinkMatrix::SlowPair> slow_pairs(const LinkMatrix& of_one_pass) {
  return suite::slow_pairs(of_one_pass, {of_one_pass.bandwidth_GBps, of_one_pass.latency_us});
}

std::size_t place(const LinkMatrix& matrix, int from, int to) {
  return static_cast<std::size_t>(from * matrix.ranks() + to);
}

TEST(SlowPairs, NearlyEqualPairsAreNotSlow) {
  EXPECT_TRUE(slow_pairs(matrix_of(std::vector<std::string>(8, "a"))).empty());
  EXPECT_TRUE(slow_pairs(matrix_of({"a", "a", "b", "b", "c", "c"})).empty());
  EXPECT_TRUE(slow_pairs({}).empty());
}

TEST(SlowPairs, OneSlowDirectionIsNamedWithItsMetric) {
  LinkMatrix matrix = matrix_of(std::vector<std::string>(4, "a"));
  matrix.bandwidth_GBps[place(matrix, 1, 3)] = 5;
  const auto slow = slow_pairs(matrix);
  ASSERT_EQ(slow.size(), 1u);
  EXPECT_EQ(slow[0].from, 1);
  EXPECT_EQ(slow[0].to, 3);
  EXPECT_EQ(slow[0].metric, "bandwidth");
  EXPECT_EQ(slow[0].value, 5);
  EXPECT_NEAR(slow[0].typical, 10.3, 0.3);
  // Twice the time is one median above the median. The smallest spread is a tenth of the median.
  EXPECT_NEAR(slow[0].z, 10, 1);
}

TEST(SlowPairs, TheWorstComesFirst) {
  LinkMatrix matrix = matrix_of(std::vector<std::string>(4, "a"));
  matrix.latency_us[place(matrix, 0, 2)] = 2;
  matrix.latency_us[place(matrix, 2, 0)] = 9;
  matrix.bandwidth_GBps[place(matrix, 3, 1)] = 3;
  std::vector<std::pair<int, int>> order;
  for (const auto& pair : slow_pairs(matrix)) order.emplace_back(pair.from, pair.to);
  EXPECT_EQ(order, (std::vector<std::pair<int, int>>{{2, 0}, {3, 1}, {0, 2}}));
}

// A fast pair is not a finding. A pair between hosts is not compared with pairs within a host.
TEST(SlowPairs, ComparesOnlyPairsOfOneKind) {
  LinkMatrix matrix = matrix_of({"a", "a", "a", "a", "a", "a", "a", "b"});
  matrix.bandwidth_GBps[place(matrix, 0, 1)] = 100;
  matrix.latency_us[place(matrix, 0, 1)] = 0.01;
  EXPECT_TRUE(slow_pairs(matrix).empty());
  matrix.bandwidth_GBps[place(matrix, 7, 4)] = 0.5;
  const auto slow = slow_pairs(matrix);
  ASSERT_EQ(slow.size(), 1u);
  EXPECT_EQ(slow[0].from, 7);
  EXPECT_NEAR(slow[0].typical, 2.06, 0.06);
}

// Other load delays single passes. A slow link has no fast pass.
TEST(SlowPairs, OneFastPassClearsAPair) {
  LinkMatrix matrix = matrix_of(std::vector<std::string>(4, "a"));
  FastestPass fastest{matrix.bandwidth_GBps, matrix.latency_us};
  for (const auto& [from, to] : {std::pair(1, 3), std::pair(2, 0)}) {
    matrix.bandwidth_GBps[place(matrix, from, to)] = 2;
    matrix.latency_us[place(matrix, from, to)] = 30;
  }
  EXPECT_TRUE(slow_pairs(matrix, fastest).empty());
  fastest.latency_us[place(matrix, 2, 0)] = 15;
  const auto slow = slow_pairs(matrix, fastest);
  ASSERT_EQ(slow.size(), 1u);
  EXPECT_EQ(slow[0].from, 2);
  EXPECT_EQ(slow[0].metric, "latency");
  EXPECT_EQ(slow[0].value, 15);
}

TEST(SlowPairs, ComparesOnlyBandwidthOnCrowdedHosts) {
  LinkMatrix matrix = matrix_of({"a", "a", "a", "a", "b", "b", "b", "b"});
  for (const auto& [from, to] : {std::pair(0, 1), std::pair(2, 5), std::pair(6, 4)})
    matrix.latency_us[place(matrix, from, to)] = 1000;
  matrix.crowded_hosts = {"a"};
  const auto slow = slow_pairs(matrix);
  ASSERT_EQ(slow.size(), 1u);
  EXPECT_EQ(slow[0].from, 6);
  EXPECT_EQ(slow[0].to, 4);
  matrix.bandwidth_GBps[place(matrix, 2, 1)] = 10.3 / 7;
  EXPECT_EQ(slow_pairs(matrix).size(), 1u);
  matrix.bandwidth_GBps[place(matrix, 2, 1)] = 10.3 / 9;
  EXPECT_EQ(slow_pairs(matrix).size(), 2u);
}

TEST(SlowPairs, AHostWithMoreRanksThanCoresIsCrowded) {
  EXPECT_EQ(crowded_hosts({"a", "b", "a", "a", "b"}, {{0}, {0}, {1}, {0}, {1}}),
            (std::vector<std::string>{"a"}));
  // Unbound ranks share all cores, and the host has enough. A wrong binding is not a lack of cores.
  EXPECT_TRUE(crowded_hosts({"a", "a"}, {{0, 1}, {0, 1}}).empty());
  EXPECT_TRUE(crowded_hosts({"a", "a", "a"}, {{0}, {0}, {1, 2}}).empty());
  EXPECT_EQ(crowded_hosts({"a", "a"}, {{3}, {3}}), (std::vector<std::string>{"a"}));
}

TEST(SlowPairs, AHostWithADelayedRankIsCrowded) {
  const std::vector<std::string> hosts{"a", "b", "c", "b"};
  const std::vector<std::vector<int>> cores{{0, 1}, {0}, {0, 1}, {1}};
  EXPECT_EQ(crowded_hosts(hosts, cores, {0.01, 0, 0.04, 0.3}), (std::vector<std::string>{"b"}));
  EXPECT_TRUE(crowded_hosts(hosts, cores, {0.01, 0, 0.04, 0.03}).empty());
}

// Wraps a link. By its own clock, each message takes 1 us, and to one peer 1000 us. Only one pair
// at a time advances this clock, so real time and other programs do not matter.
class HeldUp final : public machine::Link {
 public:
  HeldUp(std::unique_ptr<machine::Link> link, int slow_peer, std::atomic<int>& clock_us)
      : Link(link->group()), link_(std::move(link)), slow_peer_(slow_peer), clock_us_(clock_us) {}
  machine::Transport transport() const override { return link_->transport(); }

 private:
  std::uint64_t do_send(int peer, const void* data, std::size_t bytes) override {
    clock_us_ += peer == slow_peer_ ? 1000 : 1;
    return last_ = link_->send(peer, data, bytes);
  }
  void do_wait_sent(int peer, std::uint64_t number) override { link_->wait_sent(peer, number); }
  std::uint64_t last_sent(int) const override { return last_; }
  void do_receive(int peer, void* into, std::size_t bytes, machine::Store store) override {
    link_->receive(peer, into, bytes, store);
  }
  const void* do_receive_in_place(int peer, std::size_t bytes) override {
    return link_->receive_in_place(peer, bytes);
  }
  void do_release(int peer) override { link_->release(peer); }

  std::unique_ptr<machine::Link> link_;
  int slow_peer_;
  std::atomic<int>& clock_us_;
  std::uint64_t last_ = 0;
};

TEST(SlowPairs, ADelayedLinkIsReported) {
  constexpr int ranks = 4;
  std::atomic<int> clock_us{0};
  LinkMatrix matrix;
  matrix.hosts.assign(ranks, "threads");
  matrix.bandwidth_GBps.resize(ranks * ranks);
  matrix.latency_us.resize(ranks * ranks);
  machine::run_ranks(ranks, [&](machine::World& world) {
    // Messages from 1 to 2 are slow. Messages from 2 to 1 are fast, but each round trip of the pair
    // has one slow message.
    HeldUp link(machine::connect(world, world.group(), machine::Transport::shared_memory),
                world.rank() == 1 ? 2 : -1, clock_us);
    PairMeter meter(link, world.host_device(), 20'000, 1, [&] { return 1e-6 * clock_us; });
    for (const Round& round : one_at_a_time(tournament(ranks))) {
      world.barrier(world.group());
      const auto& [low, high] = round[0];
      if (world.rank() != low && world.rank() != high) continue;
      for (const auto& [from, to] : {std::pair(low, high), std::pair(high, low)}) {
        meter.latency(from, to);
        meter.bandwidth(from, to, false);
      }
    }
    for (int peer = 0; peer < ranks; ++peer) {
      matrix.bandwidth_GBps[place(matrix, world.rank(), peer)] = meter.bandwidth_GBps(peer).median;
      matrix.latency_us[place(matrix, world.rank(), peer)] = 1e6 * meter.latency_s(peer).median;
    }
  });
  const auto slow = slow_pairs(matrix);
  const auto is_slow = [&](int from, int to, std::string_view metric) {
    return std::ranges::any_of(slow, [&](const LinkMatrix::SlowPair& pair) {
      return pair.from == from && pair.to == to && pair.metric == metric;
    });
  };
  EXPECT_TRUE(std::ranges::all_of(slow, [](const LinkMatrix::SlowPair& pair) {
    return pair.from + pair.to == 3 && pair.from * pair.to == 2;
  }));
  EXPECT_TRUE(is_slow(1, 2, "latency"));
  EXPECT_TRUE(is_slow(2, 1, "latency"));
  EXPECT_TRUE(is_slow(1, 2, "bandwidth"));
}

TEST(PairMeter, CountsWrongData) {
  // Corrupts the last byte of every message that rank 0 receives from rank 2.
  class Garbling final : public machine::Link {
   public:
    explicit Garbling(std::unique_ptr<machine::Link> link)
        : Link(link->group()), link_(std::move(link)) {}
    machine::Transport transport() const override { return link_->transport(); }

   private:
    std::uint64_t do_send(int peer, const void* data, std::size_t bytes) override {
      return link_->send(peer, data, bytes);
    }
    void do_wait_sent(int peer, std::uint64_t number) override { link_->wait_sent(peer, number); }
    std::uint64_t last_sent(int) const override { return 0; }
    void do_receive(int peer, void* into, std::size_t bytes, machine::Store store) override {
      link_->receive(peer, into, bytes, store);
      if (rank() == 0 && peer == 2) static_cast<unsigned char*>(into)[bytes - 1] ^= 1;
    }
    const void* do_receive_in_place(int, std::size_t) override { return nullptr; }
    void do_release(int) override {}

    std::unique_ptr<machine::Link> link_;
  };
  machine::run_ranks(3, [](machine::World& world) {
    Garbling link(machine::connect(world, world.group(), machine::Transport::shared_memory));
    PairMeter meter(link, world.host_device(), 1001, 7);
    link.reset_traffic();
    for (const Round& round : tournament(3)) {
      const int peer = peer_in(round, world.rank());
      if (peer < 0) continue;
      const int low = std::min(world.rank(), peer), high = std::max(world.rank(), peer);
      for (const auto& [from, to] : {std::pair(low, high), std::pair(high, low)}) {
        meter.latency(from, to);
        meter.bandwidth(from, to, true);
      }
    }
    EXPECT_EQ(link.total(), meter.expected_traffic());
    const bool garbled = world.rank() == 0;
    EXPECT_EQ(meter.wrong(1), 0);
    // Nine words per direction of the latency, two words of one direction of the bandwidth, and
    // four large messages of the other.
    EXPECT_EQ(meter.wrong(2), garbled ? 9 + 9 + 2 + 4 : 0);
    EXPECT_EQ(meter.wrong(0), 0);
  });
}

}  // namespace
}  // namespace suite

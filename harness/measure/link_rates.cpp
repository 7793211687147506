#include "harness/measure/link_rates.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "harness/measure/batches.h"
#include "harness/measure/sampler.h"
#include "machine/base/clock.h"
#include "machine/device/host/stream_copy.h"
#include "machine/link/connect.h"

namespace harness {
namespace {

constexpr std::uint64_t all_messages = std::numeric_limits<std::uint64_t>::max();
constexpr int batches_taken = 3;

// Touched buffers to send from and to receive into, and the neighbours of this rank.
struct Ring {
  Ring(machine::World& world, const machine::Group& group, machine::Transport transport,
       std::int64_t largest_set)
      : link(machine::connect(world, group, transport)),
        next((group.index + 1) % group.size()),
        previous((group.index + group.size() - 1) % group.size()),
        from(world.host_device().allocate(static_cast<std::size_t>(largest_set / 2),
                                          machine::Category::buffers)),
        to(world.host_device().allocate(static_cast<std::size_t>(largest_set / 2),
                                        machine::Category::buffers)) {
    std::memset(from.data(), 1, from.bytes());
    std::memset(to.data(), 0, to.bytes());
  }

  std::unique_ptr<machine::Link> link;
  int next, previous;
  machine::Memory from, to;
};

// The memory of the previous rank. Sent whole, once: small messages would use the channel, which is
// in the receiver's own memory.
class PeerMemory {
 public:
  PeerMemory(Ring& ring, machine::World& world, const machine::Group& group)
      : link_(machine::connect(world, group, machine::Transport::shared_memory)), ring_(ring) {
    link_->send(ring.next, ring.from.data(), ring.from.bytes());
    data_ = link_->receive_in_place(ring.previous, ring.from.bytes());
  }
  ~PeerMemory() {
    link_->release(ring_.previous);
    link_->flush();
  }
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;
  const void* data() const { return data_; }

 private:
  std::unique_ptr<machine::Link> link_;
  Ring& ring_;
  const void* data_ = nullptr;
};

// Returns the rounds for which the slowest rank takes about total_s: the same number on all ranks.
int agreed_rounds(machine::World& world, const machine::Group& group, double round_s,
                  double total_s, int most) {
  round_s = std::ranges::max(world.all_gather(group, round_s));
  return static_cast<int>(std::clamp(total_s / std::max(round_s, 1e-9), 1.0, 1.0 * most));
}

// Bytes per second by working set, from the seconds of one transfer.
std::vector<double> rates_of(const std::vector<std::int64_t>& sets, const auto& seconds_of_set) {
  std::vector<double> rates;
  for (const std::int64_t set : sets)
    rates.push_back(static_cast<double>(set / 2) /
                    seconds_of_set(set, static_cast<std::size_t>(set / 2)));
  return rates;
}

// The seconds of the better way to store; past the cache only for sets that may exceed it.
double best_copy(std::int64_t set, const auto& seconds_with) {
  const double seconds = seconds_with(std::memcpy);
  return set < (4 << 20) ? seconds : std::min(seconds, seconds_with(machine::host::stream_copy));
}

void show_progress(machine::World& world) {
  world.board().mine().progress.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

std::vector<double> peer_memory_rates(machine::World& world, const machine::Group& group,
                                      const std::vector<std::int64_t>& sets, bool shares_cores) {
  Ring ring(world, group, machine::Transport::shared_memory, sets.back());
  const PeerMemory peer(ring, world, group);
  const auto rates = rates_of(sets, [&](std::int64_t set, std::size_t bytes) {
    const Batches batches{1e-3, set > (4 << 20) ? 10e-3 : 8e-3, shares_cores,
                          &world.board().mine().progress};
    barrier(ring.link.get());
    return best_copy(set, [&](const auto& copy) {
      return seconds_of([&] { copy(ring.to.data(), peer.data(), bytes); }, [] {}, batches);
    });
  });
  barrier(ring.link.get());  // no rank frees memory that another rank reads
  return rates;
}

std::vector<double> fresh_memory_rates(machine::World& world, const machine::Group& group,
                                       const std::vector<std::int64_t>& sets, bool shares_cores) {
  Ring ring(world, group, machine::Transport::shared_memory, sets.back());
  const PeerMemory peer(ring, world, group);
  const auto rates = rates_of(sets, [&](std::int64_t set, std::size_t bytes) {
    return best_copy(set, [&](const auto& copy) {
      double best = std::numeric_limits<double>::infinity(), sum = 0;
      const auto round = [&] {
        std::memset(ring.from.data(), 1, bytes);
        barrier(ring.link.get());
        const double begin = machine::steady_s();
        copy(ring.to.data(), peer.data(), bytes);
        const double seconds = machine::steady_s() - begin;
        barrier(ring.link.get());  // before the next write
        show_progress(world);
        return seconds;
      };
      const double begin = machine::steady_s();
      round();
      const int rounds = agreed_rounds(world, group, machine::steady_s() - begin, 2e-3, 50);
      for (int batch = 0; batch < batches_taken; ++batch) {
        double seconds = 0;
        for (int i = 0; i < rounds; ++i) seconds += round();
        best = std::min(best, seconds / rounds);
        sum += seconds / rounds;
      }
      return shares_cores ? sum / batches_taken : best;
    });
  });
  barrier(ring.link.get());
  return rates;
}

std::vector<double> message_rates(machine::World& world, const machine::Group& group,
                                  const std::vector<std::int64_t>& sets) {
  Ring ring(world, group, machine::Transport::mpi, sets.back());
  return rates_of(sets, [&](std::int64_t, std::size_t bytes) {
    const auto exchange = [&] {
      ring.link->send(ring.next, ring.from.data(), bytes);
      ring.link->receive(ring.previous, ring.to.data(), bytes);
      ring.link->wait_sent(ring.next, all_messages);
    };
    exchange();
    const double begin = machine::steady_s();
    exchange();
    const int rounds = agreed_rounds(world, group, machine::steady_s() - begin, 4e-3, 300);
    double best = std::numeric_limits<double>::infinity();
    for (int batch = 0; batch < batches_taken; ++batch) {
      const double batch_begin = machine::steady_s();
      for (int i = 0; i < rounds; ++i) exchange();
      show_progress(world);
      best = std::min(best, (machine::steady_s() - batch_begin) / rounds);
    }
    return best;
  });
}

}  // namespace harness

#include "harness/measure/link_rates.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>

#include "harness/measure/memory_batches.h"
#include "harness/measure/sampler.h"
#include "machine/base/clock.h"
#include "machine/base/error.h"
#include "machine/device/host/stream_copy.h"
#include "machine/device/kernels.h"
#include "machine/device/tensor.h"
#include "machine/link/connect.h"

namespace harness {
namespace {

using machine::Transport;

// Minimum size of the buffers: a message of this size is read in place over shared_memory.
constexpr std::int64_t least_set = 1 << 20;
constexpr std::uint64_t all_messages = std::numeric_limits<std::uint64_t>::max();

// Touched buffers to send from and to receive into, in host memory or, between devices, in memory
// of the world's device.
struct Buffers {
  Buffers(machine::World& world, Transport transport, std::int64_t largest_set) {
    machine::Device& device = between_devices(transport) ? world.device() : world.host_device();
    for (machine::Tensor* const one : {&from, &to}) {
      *one = machine::Tensor(device, machine::Dtype::uint8, {largest_set / 2},
                             machine::Category::buffers);
      device.stream().kernels().fill(*one, 1);
    }
    device.stream().synchronize();
  }
  machine::Tensor from, to;
};

// Returns null if memory is exhausted.
std::unique_ptr<Buffers> buffers_of(machine::World& world, Transport transport,
                                    std::int64_t largest_set) {
  try {
    return std::make_unique<Buffers>(world, transport, largest_set);
  } catch (const machine::MachineError& error) {
    if (error.failure().kind != machine::Failure::Kind::out_of_memory) throw;
    return nullptr;
  }
}

// The link, the neighbours of this rank, and its buffers.
struct Ring {
  Ring(machine::World& world, const machine::Group& group, Transport transport, Buffers& buffers)
      : link(machine::connect(world, group, transport)),
        next((group.index + 1) % group.size()),
        previous((group.index + group.size() - 1) % group.size()),
        from(buffers.from),
        to(buffers.to) {}

  std::unique_ptr<machine::Link> link;
  int next, previous;
  machine::Tensor from, to;
};

// Returns the seconds of one round: the best of some batches. run(rounds) returns the seconds of a
// batch. The slowest rank decides how many rounds take batch_s, so all ranks run the same number.
double seconds_of_round(machine::World& world, const machine::Group& group, double batch_s,
                        int most_rounds, const auto& run) {
  constexpr int batches = 3;
  const double begin = machine::steady_s();
  run(1);
  const double round_s = std::ranges::max(world.all_gather(group, machine::steady_s() - begin));
  const int rounds =
      static_cast<int>(std::clamp(batch_s / std::max(round_s, 1e-9), 1.0, 1.0 * most_rounds));
  double best = std::numeric_limits<double>::infinity();
  for (int batch = 0; batch < batches; ++batch) {
    best = std::min(best, run(rounds) / rounds);
  }
  return best;
}

// Returns bytes per second by working set, from the seconds of one transfer.
std::vector<double> rates_of(const std::vector<std::int64_t>& sets, const auto& seconds_of_set) {
  std::vector<double> rates;
  for (const std::int64_t set : sets) {
    const auto bytes = static_cast<std::size_t>(set / 2);  // read, and written to the other half
    rates.push_back(static_cast<double>(bytes) / seconds_of_set(set, bytes));
  }
  return rates;
}

// Returns the seconds of the faster way to store. Bypasses the cache only for sets that may exceed
// it.
double best_copy(std::int64_t set, const auto& seconds_with) {
  const double seconds = seconds_with(std::memcpy);
  return set < cached_set ? seconds : std::min(seconds, seconds_with(machine::host::stream_copy));
}

ReceivingRates peer_memory_rates(machine::World& world, const machine::Group& group,
                                 Buffers& buffers, const std::vector<std::int64_t>& sets) {
  Ring ring(world, group, Transport::shared_memory, buffers);
  machine::Link* const link = ring.link.get();
  // The memory of the previous rank. Sent whole, once: small messages would use the channel, which
  // is in the receiver's own memory.
  const auto whole = machine::connect(world, group, Transport::shared_memory);
  whole->send(ring.next, ring.from.data(), ring.from.bytes());
  const void* const peer = whole->receive_in_place(ring.previous, ring.from.bytes());
  ReceivingRates rates;
  rates.unchanged = rates_of(sets, [&](std::int64_t set, std::size_t bytes) {
    barrier(link);
    return best_copy(set, [&](const auto& copy) {
      return seconds_of_all(
          world, group, set, [&] { copy(ring.to.data(), peer, bytes); }, [] {});
    });
  });
  barrier(link);  // no rank writes memory that another rank reads
  rates.fresh = rates_of(sets, [&](std::int64_t set, std::size_t bytes) {
    return best_copy(set, [&](const auto& copy) {
      return seconds_of_round(world, group, 2e-3, 50, [&](int rounds) {
        double seconds = 0;
        for (int i = 0; i < rounds; ++i) {
          std::memset(ring.from.data(), 1, bytes);
          barrier(link);
          const double begin = machine::steady_s();
          copy(ring.to.data(), peer, bytes);
          seconds += machine::steady_s() - begin;
          barrier(link);  // before the next write
          show_progress(world);
        }
        return seconds;
      });
    });
  });
  barrier(link);  // no rank frees memory that another rank reads
  whole->release(ring.previous);
  whole->flush();
  return rates;
}

// Returns the rates of messages over the link: the same for unchanged and fresh bytes. A batch ends
// when the link's stream has done its work.
ReceivingRates message_rates(machine::World& world, const machine::Group& group,
                             Transport transport, Buffers& buffers,
                             const std::vector<std::int64_t>& sets) {
  Ring ring(world, group, transport, buffers);
  machine::Stream* const stream = ring.link->stream();
  const std::vector<double> rates = rates_of(sets, [&](std::int64_t, std::size_t bytes) {
    const auto exchange = [&](int rounds) {
      const double begin = machine::steady_s();
      for (int i = 0; i < rounds; ++i) {
        ring.link->send(ring.next, ring.from.data(), bytes);
        ring.link->receive(ring.previous, ring.to.data(), bytes);
        ring.link->wait_sent(ring.next, all_messages);
      }
      if (stream) stream->synchronize();
      show_progress(world);
      return machine::steady_s() - begin;
    };
    exchange(1);
    return seconds_of_round(world, group, stream ? 20e-3 : 4e-3, 300, exchange);
  });
  return {rates, rates};
}

}  // namespace

ReceivingRates receiving_rates(machine::World& world, const machine::Group& group,
                               Transport transport, const std::vector<std::int64_t>& sets) {
  std::unique_ptr<Buffers> buffers;
  if (machine::why_not(world, group, transport).empty())
    buffers = buffers_of(world, transport, std::max(sets.back(), least_set));
  // A rank that cannot take part would leave the others waiting.
  const bool can = buffers != nullptr;
  if (std::ranges::count(world.all_gather(group, can), false) > 0) return {};
  return transport == Transport::shared_memory
             ? peer_memory_rates(world, group, *buffers, sets)
             : message_rates(world, group, transport, *buffers, sets);
}

}  // namespace harness

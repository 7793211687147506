#include "harness/measure/rates.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <set>
#include <vector>

#include "harness/measure/batches.h"
#include "harness/measure/sampler.h"
#include "harness/unit/unit.h"
#include "machine/base/clock.h"
#include "machine/device/gemm.h"
#include "machine/device/host/stream_copy.h"
#include "machine/device/host/threads.h"
#include "machine/device/kernels.h"
#include "machine/device/tensor.h"
#include "machine/link/connect.h"
#include "machine/world/binding.h"

namespace harness {
namespace {

using machine::Dtype;

constexpr Dtype measured_dtypes[] = {Dtype::float32, Dtype::bfloat16};
constexpr std::int64_t gemm_extent = 512;
// Longer copies show progress after each part: on busy cores a copy may take a second.
constexpr std::size_t part_bytes = std::size_t{64} << 20;
constexpr std::int64_t cached_set = 4 << 20;  // larger sets may exceed the nearest cache

void show_progress(machine::World& world) {
  world.board().mine().progress.fetch_add(1, std::memory_order_relaxed);
}

Batches batches_of(machine::World& world, std::int64_t set_bytes, bool shares_cores) {
  return {1e-3, set_bytes > cached_set ? 10e-3 : 8e-3, shares_cores,
          &world.board().mine().progress};
}

// Finer around the size of the last cache.
std::vector<std::int64_t> sets(std::int64_t largest = 64 << 20) {
  std::vector<std::int64_t> sets;
  for (std::int64_t bytes = 4 << 10; bytes <= largest; bytes *= bytes < 4 << 20 ? 4 : 2)
    sets.push_back(bytes);
  return sets;
}

// Large enough to exceed the caches: half of a set is read. If the writes to the other half bypass
// the cache, the cache may hold part of the read half. The host does not know a GPU's cache.
std::int64_t largest_copied(const machine::Device& device, int ranks) {
  const std::int64_t least = device.readable_by_host() ? 64 << 20 : 512 << 20;
  const auto caches = static_cast<std::int64_t>(machine::last_level_cache_bytes());
  return std::max(least, 8 * caches / ranks);
}

// Whether two ranks of the group have a core in common.
bool cores_are_shared(machine::World& world, const machine::Group& group) {
  const std::vector<std::vector<int>> cores = world.all_gather(group, world.cores());
  std::set<std::pair<std::string, int>> seen;
  for (std::size_t i = 0; i < cores.size(); ++i)
    for (const int core : cores[i])
      if (!seen.emplace(world.host(group.members[i]), core).second) return true;
  return false;
}

// Returns the shortest time: by one thread or all, through the cache or bypassing it. Bypasses the
// cache only for sets that exceed the nearest cache.
double copy_seconds(machine::World& world, std::int64_t set_bytes, bool shares_cores) {
  machine::Device& device = world.device();
  const std::size_t half = static_cast<std::size_t>(set_bytes / 2);
  const machine::Memory from = device.allocate(half, machine::Category::buffers);
  const machine::Memory to = device.allocate(half, machine::Category::buffers);
  auto* const source = static_cast<std::byte*>(from.data());
  auto* const target = static_cast<std::byte*>(to.data());
  // Touched first: untouched pages all read the same zero page.
  const std::vector<char> pattern(std::min(half, part_bytes), 1);
  const auto in_parts = [&](std::size_t begin, std::size_t end, const auto& copy) {
    for (; begin < end; begin += part_bytes) {
      copy(begin, std::min(part_bytes, end - begin));
      if (end - begin > part_bytes) show_progress(world);
    }
  };
  in_parts(0, half, [&](std::size_t at, std::size_t bytes) {
    device.stream().copy(source + at, pattern.data(), bytes);
  });
  const Batches batches = batches_of(world, set_bytes, shares_cores);
  const auto copy_all = [&] {
    in_parts(0, half, [&](std::size_t at, std::size_t bytes) {
      device.stream().copy(target + at, source + at, bytes);
    });
  };
  const double alone = seconds_of(
      copy_all, [&] { device.stream().synchronize(); }, batches);
  if (!device.readable_by_host()) return alone;
  const auto seconds_by_all_threads = [&](const auto& copy_part) {
    const auto copy = [&] {
      machine::host::parallel(device.threads(), static_cast<std::int64_t>(half), 2,
                              machine::host::line_bytes, [&](std::int64_t begin, std::int64_t end) {
                                in_parts(static_cast<std::size_t>(begin),
                                         static_cast<std::size_t>(end),
                                         [&](std::size_t at, std::size_t bytes) {
                                           copy_part(target + at, source + at, bytes);
                                         });
                              });
    };
    return seconds_of(
        copy, [] {}, batches);
  };
  // A kernel uses all threads of its rank, so the rate of one thread would not be a limit.
  double best = alone;
  if (device.threads() > 1) best = std::min(best, seconds_by_all_threads(std::memcpy));
  if (set_bytes >= cached_set)
    best = std::min(best, seconds_by_all_threads(machine::host::stream_copy));
  return best;
}

double gemm_seconds(machine::World& world, Dtype dtype, bool shares_cores) {
  machine::Device& device = world.device();
  const machine::Shape shape{gemm_extent, gemm_extent};
  const machine::Tensor a(device, dtype, shape, machine::Category::buffers);
  const machine::Tensor b(device, dtype, shape, machine::Category::buffers);
  const machine::Tensor c(device, dtype, shape, machine::Category::buffers);
  machine::Kernels& kernels = device.stream().kernels();
  kernels.fill_uniform(a, 1, {0, 0, gemm_extent}, -1, 1);
  kernels.fill_uniform(b, 2, {0, 0, gemm_extent}, -1, 1);
  const auto multiply = [&] { gemm(device.stream(), matrix(a), matrix(b), matrix(c)); };
  return seconds_of(multiply, [&] { device.stream().synchronize(); },
                    {1e-3, 40e-3, shares_cores, &world.board().mine().progress});
}

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

// Returns the seconds of one round: the best of some batches, or their mean if ranks share cores.
// run(rounds) returns the seconds of a batch. The slowest rank decides how many rounds take
// batch_s, so all ranks run the same number.
double seconds_of_round(machine::World& world, const machine::Group& group, double batch_s,
                        int most_rounds, bool shares_cores, const auto& run) {
  constexpr int batches = 3;
  const double begin = machine::steady_s();
  run(1);
  const double round_s = std::ranges::max(world.all_gather(group, machine::steady_s() - begin));
  const int rounds =
      static_cast<int>(std::clamp(batch_s / std::max(round_s, 1e-9), 1.0, 1.0 * most_rounds));
  double best = std::numeric_limits<double>::infinity(), sum = 0;
  for (int batch = 0; batch < batches; ++batch) {
    const double seconds = run(rounds) / rounds;
    best = std::min(best, seconds);
    sum += seconds;
  }
  return shares_cores ? sum / batches : best;
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

// Rates of receiving from another rank: each rank of the group receives from the previous rank, all
// at once. In bytes received per second on this rank, by working set (sent plus received bytes) in
// rising order.
//
// Over shared_memory a receiver copies from the sender's memory, by the faster way to store, as for
// local copies. unchanged: the same bytes repeatedly. fresh: the sender rewrites them before each
// copy.
struct ReceivingRates {
  std::vector<double> unchanged, fresh;
};
ReceivingRates peer_memory_rates(machine::World& world, const machine::Group& group,
                                 const std::vector<std::int64_t>& sets, bool shares_cores) {
  Ring ring(world, group, machine::Transport::shared_memory, sets.back());
  machine::Link* const link = ring.link.get();
  // The memory of the previous rank. Sent whole, once: small messages would use the channel, which
  // is in the receiver's own memory.
  const auto whole = machine::connect(world, group, machine::Transport::shared_memory);
  whole->send(ring.next, ring.from.data(), ring.from.bytes());
  const void* const peer = whole->receive_in_place(ring.previous, ring.from.bytes());
  ReceivingRates rates;
  rates.unchanged = rates_of(sets, [&](std::int64_t set, std::size_t bytes) {
    barrier(link);
    return best_copy(set, [&](const auto& copy) {
      return seconds_of([&] { copy(ring.to.data(), peer, bytes); }, [] {},
                        batches_of(world, set, shares_cores));
    });
  });
  barrier(link);  // no rank writes memory that another rank reads
  rates.fresh = rates_of(sets, [&](std::int64_t set, std::size_t bytes) {
    return best_copy(set, [&](const auto& copy) {
      return seconds_of_round(world, group, 2e-3, 50, shares_cores, [&](int rounds) {
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

// Returns the rates of MPI's own point-to-point: the same for unchanged and fresh bytes.
ReceivingRates message_rates(machine::World& world, const machine::Group& group,
                             const std::vector<std::int64_t>& sets) {
  Ring ring(world, group, machine::Transport::mpi, sets.back());
  const std::vector<double> rates = rates_of(sets, [&](std::int64_t, std::size_t bytes) {
    const auto exchange = [&](int rounds) {
      const double begin = machine::steady_s();
      for (int i = 0; i < rounds; ++i) {
        ring.link->send(ring.next, ring.from.data(), bytes);
        ring.link->receive(ring.previous, ring.to.data(), bytes);
        ring.link->wait_sent(ring.next, std::numeric_limits<std::uint64_t>::max());
      }
      show_progress(world);
      return machine::steady_s() - begin;
    };
    exchange(1);
    return seconds_of_round(world, group, 4e-3, 300, false, exchange);
  });
  return {rates, rates};
}

// The mean over the group of each rank's numbers, on every rank of the world.
std::vector<double> agreed_means(machine::World& world, const machine::Group& group,
                                 const std::vector<double>& mine) {
  std::vector<double> means(mine.size());
  if (group.index >= 0)
    for (const std::vector<double>& theirs : world.all_gather(group, mine))
      for (std::size_t i = 0; i < means.size(); ++i) means[i] += theirs[i] / group.size();
  return world.broadcast(world.group(), 0, means);
}

// Returns the value of the key's curve; 0: not measured.
double at(const auto& curves, const auto& key, double working_set_bytes) {
  const auto found = curves.find(key);
  if (found == curves.end() || found->second.empty()) return 0;
  const auto& curve = found->second;
  const auto above = curve.lower_bound(working_set_bytes);
  if (above == curve.begin()) return above->second;
  if (above == curve.end()) return curve.rbegin()->second;
  const auto below = std::prev(above);
  const double place =
      std::log(working_set_bytes / below->first) / std::log(above->first / below->first);
  return below->second + place * (above->second - below->second);
}

}  // namespace

double Rates::memory_bytes_per_second(double working_set_bytes, int ranks) const {
  return at(copy_, ranks, working_set_bytes);
}

double Rates::link_bytes_per_second(double working_set_bytes, const LinkKey& key) const {
  return at(link_, key, working_set_bytes);
}

double Rates::flops_per_second(Dtype dtype, int ranks) const {
  const auto found = gemm_.find({ranks, dtype});
  return found == gemm_.end() ? 0 : found->second;
}

std::map<std::string, double> Rates::named() const {
  std::map<std::string, double> names;
  for (const auto& [ranks, rates] : copy_)
    for (const auto& [bytes, rate] : rates)
      names[fmt::format("copy_GBps/ranks:{}/bytes:{:.0f}", ranks, bytes)] = rate / 1e9;
  for (const auto& [key, rates] : link_) {
    const char* state = key.transport == machine::Transport::mpi ? ""
                        : key.fresh                              ? "/state:fresh"
                                                                 : "/state:unchanged";
    for (const auto& [bytes, rate] : rates)
      names[fmt::format("link_GBps/transport:{}{}/ranks:{}/bytes:{:.0f}", name(key.transport),
                        state, key.ranks, bytes)] = rate / 1e9;
  }
  for (const auto& [key, rate] : gemm_)
    names[fmt::format("gemm_GFLOPs/ranks:{}/dtype:{}", key.first, name(key.second))] = rate / 1e9;
  return names;
}

void Rates::set_memory(int ranks, double working_set_bytes, double bytes_per_second) {
  copy_[ranks][working_set_bytes] = bytes_per_second;
}

void Rates::set_link(const LinkKey& key, double working_set_bytes, double bytes_per_second) {
  link_[key][working_set_bytes] = bytes_per_second;
}

void Rates::set_flops(int ranks, Dtype dtype, double flops_per_second) {
  gemm_[{ranks, dtype}] = flops_per_second;
}

void Rates::measure(machine::World& world, int ranks) {
  world.set_active_ranks(ranks);
  if (copy_.contains(ranks)) return;
  const machine::Group group = machine::first_ranks("world", ranks, world.rank());
  // From rank 0, because hosts may have different caches.
  const std::vector<std::int64_t> sizes =
      sets(world.broadcast(world.group(), 0, largest_copied(world.device(), ranks)));
  std::vector<double> rates(sizes.size() + std::size(measured_dtypes));
  if (group.index >= 0) {
    const bool shared = cores_are_shared(world, group);
    // All ranks begin each measurement together, so that they share the memory bandwidth
    // throughout. The best of two turns, because other work seldom disturbs both. One turn is
    // enough for the mean of ranks that share cores.
    for (std::size_t turn = 0; turn < (shared ? 1 : 2) * rates.size(); ++turn) {
      const std::size_t i = turn % rates.size();
      double rate = 0;
      world.barrier(group);
      if (i < sizes.size())
        rate = static_cast<double>(sizes[i]) / copy_seconds(world, sizes[i], shared);
      else
        rate = 2.0 * gemm_extent * gemm_extent * gemm_extent /
               gemm_seconds(world, measured_dtypes[i - sizes.size()], shared);
      rates[i] = std::max(rates[i], rate);
    }
  }
  rates = agreed_means(world, group, rates);
  for (std::size_t i = 0; i < sizes.size(); ++i)
    set_memory(ranks, static_cast<double>(sizes[i]), rates[i]);
  for (std::size_t i = sizes.size(); i < rates.size(); ++i)
    set_flops(ranks, measured_dtypes[i - sizes.size()], rates[i]);
}

void Rates::measure_link(machine::World& world, int ranks, machine::Transport transport) {
  world.set_active_ranks(ranks);
  if (ranks < 2 || link_.contains({ranks, transport, false})) return;
  const machine::Group group = machine::first_ranks("world", ranks, world.rank());
  const std::vector<std::int64_t> sizes = sets();
  // The ranks agree on a missing link like on a rate.
  ReceivingRates mine{std::vector<double>(sizes.size()), std::vector<double>(sizes.size())};
  if (group.index >= 0 && machine::why_not(world, group, transport).empty())
    mine = transport == machine::Transport::mpi
               ? message_rates(world, group, sizes)
               : peer_memory_rates(world, group, sizes, cores_are_shared(world, group));
  for (const bool is_fresh : {false, true}) {
    const std::vector<double> rates =
        agreed_means(world, group, is_fresh ? mine.fresh : mine.unchanged);
    // Empty if the transport cannot connect the ranks, so it is not measured again.
    Curve& curve = link_[{ranks, transport, is_fresh}];
    for (std::size_t i = 0; i < sizes.size(); ++i)
      if (rates[i] > 0) curve[static_cast<double>(sizes[i])] = rates[i];
  }
}

double limit_s(const Cost& cost, const Rates& rates, int ranks) {
  double limit = 0;
  if (const double flops = rates.flops_per_second(cost.flops_dtype, ranks);
      cost.flops > 0 && flops > 0)
    limit = cost.flops / flops;
  const double set = cost.working_set_bytes > 0 ? cost.working_set_bytes : cost.memory_bytes;
  const double copy = rates.memory_bytes_per_second(set, ranks);
  double memory_s = copy > 0 ? cost.memory_bytes / copy : 0;
  const double link = rates.link_bytes_per_second(set, {ranks, cost.transport, false});
  if (link > 0 && cost.transport == machine::Transport::mpi)
    limit = std::max(limit, cost.wire_bytes / link);
  else if (link > 0 && copy > 0)
    memory_s += cost.wire_bytes * std::max(0.0, 1 / link - 2 / copy);
  return std::max(limit, memory_s);
}

}  // namespace harness

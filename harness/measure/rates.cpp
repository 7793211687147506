#include "harness/measure/rates.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <span>
#include <vector>

#include "harness/measure/link_rates.h"
#include "harness/measure/matrix_rate.h"
#include "harness/measure/memory_batches.h"
#include "harness/measure/rate_curve.h"
#include "harness/measure/sampler.h"
#include "harness/measure/update_in_place.h"
#include "machine/base/error.h"
#include "machine/device/dense_peak.h"
#include "machine/device/host/stream_copy.h"
#include "machine/device/host/threads.h"
#include "machine/device/kernels.h"
#include "machine/world/binding.h"
#include "machine/world/thread_cores.h"

namespace harness {
namespace {

using machine::Dtype;

// Other work seldom disturbs all of a larger copy, which takes as long as several smaller ones.
constexpr std::int64_t repeated_set = 64 << 20;

// The states of an optimizer are larger, and fewer sets leave a run to begin earlier.
constexpr std::int64_t least_updated = 1 << 20;

// A source and a target at the same place of a page slow each other down: a load waits for the
// stores that have its last twelve bits.
constexpr std::size_t apart_bytes = 2048 + 128;

// Longer copies show progress after each part: on busy cores a copy may take a second.
constexpr std::size_t part_bytes = std::size_t{64} << 20;

std::vector<std::int64_t> sets(std::int64_t largest) {
  std::vector<std::int64_t> sets;
  for (std::int64_t bytes = 4 << 10; bytes <= largest; bytes *= 2) sets.push_back(bytes);
  return sets;
}

// Large enough to exceed the host's caches: half of a set is read. If the writes to the other half
// bypass the cache, the cache may hold part of the read half.
std::int64_t past_caches(int ranks) {
  return 8 * static_cast<std::int64_t>(machine::last_level_cache_bytes()) / ranks;
}

// The host does not know a GPU's cache.
std::int64_t largest_copied(const machine::Device& device, int ranks) {
  const std::int64_t least = device.readable_by_host() ? 64 << 20 : 512 << 20;
  return std::max(least, past_caches(ranks));
}

// Returns the largest number of bytes that a rank sends and receives. Links between GPUs need large
// messages to be busy.
std::int64_t largest_sent(const machine::Device& device, machine::Transport transport, int ranks) {
  if (!between_devices(transport))
    return std::clamp(past_caches(ranks), std::int64_t{64} << 20, std::int64_t{256} << 20);
  return std::int64_t{has_gpu_speed(device) ? 512 : 4} << 20;
}

// Returns whether ranks of the group take turns on a GPU or on cores. Then no time shows a speed: a
// short run may have the core to itself, a long one has a part of it. Agreed by all ranks.
bool ranks_take_turns(machine::World& world, const machine::Group& group) {
  const bool mine =
      group.index >= 0 &&
      (world.computes_on_gpu() ? world.sharers_of_device(group) > 1 : world.oversubscribed());
  return std::ranges::max(world.all_gather(world.group(), mine ? 1 : 0)) == 1;
}

// The memory of all copies. A set uses the first bytes, so pages are allocated once: allocating
// them for each set would take longer than the copies.
struct CopyBuffers {
  std::int64_t set_bytes = 0;  // of both halves, on all ranks; 0: no set fits into memory
  int most_threads = 1;        // of a rank
  machine::Memory from, to;

  std::byte* source() const { return static_cast<std::byte*>(from.data()); }
  std::byte* target() const { return static_cast<std::byte*>(to.data()) + apart_bytes; }
};

// Calls copy(begin, bytes) for each part of [begin, end).
void in_parts(machine::World& world, std::size_t begin, std::size_t end, const auto& copy) {
  if (end - begin <= part_bytes) return copy(begin, end - begin);
  for (; begin < end; begin += part_bytes) {
    copy(begin, std::min(part_bytes, end - begin));
    if (end - begin > part_bytes) show_progress(world);
  }
}

// Returns buffers for the largest of the ascending sets that fits into memory.
CopyBuffers own_buffers(machine::World& world, const std::vector<std::int64_t>& sets) {
  machine::Device& device = world.device();
  for (auto set = sets.rbegin(); set != sets.rend(); ++set) try {
      const auto half = static_cast<std::size_t>(*set / 2);
      CopyBuffers buffers{*set, device.threads(), device.allocate(half, machine::Category::buffers),
                          device.allocate(half + apart_bytes, machine::Category::buffers)};
      // Touched first: untouched pages all read the same zero page.
      const std::vector<char> pattern(std::min(half, part_bytes), 1);
      in_parts(world, 0, half, [&](std::size_t at, std::size_t bytes) {
        for (std::byte* const memory : {buffers.source(), buffers.target()})
          device.stream().copy(memory + at, pattern.data(), bytes);
      });
      device.stream().synchronize();
      return buffers;
    } catch (const machine::MachineError& error) {
      if (error.failure().kind != machine::Failure::Kind::out_of_memory) throw;
    }
  return {};
}

// Returns the same on all ranks of the group, which measure together.
CopyBuffers copy_buffers(machine::World& world, const machine::Group& group,
                         const std::vector<std::int64_t>& sets) {
  CopyBuffers buffers = own_buffers(world, sets);
  buffers.set_bytes = std::ranges::min(world.all_gather(group, buffers.set_bytes));
  buffers.most_threads = std::ranges::max(world.all_gather(group, buffers.most_threads));
  return buffers;
}

// Returns the shorter time for the bytes of a set: of one copy, or of sums, which read twice what
// they write. On an H200 sums are 3 % faster than copies, and copies in parts 10 % slower.
double copy_seconds_of_gpu(machine::Device& device, const CopyBuffers& buffers, std::size_t half,
                           const Batches& batches) {
  const auto finish = [&] { device.stream().synchronize(); };
  std::byte* const source = buffers.source();
  void* const target = buffers.to.data();
  const double copied =
      seconds_of([&] { device.stream().copy(target, source, half); }, finish, batches);
  const std::size_t quarter = half / 2;
  const double added = seconds_of(
      [&] {
        device.stream().kernels().reduce(machine::Reduction::sum, Dtype::float32, source,
                                         source + quarter, target,
                                         static_cast<std::int64_t>(quarter / sizeof(float)));
      },
      finish, batches);
  return std::min(copied, added * static_cast<double>(2 * half) / static_cast<double>(3 * quarter));
}

// Returns the shortest time: by one thread or all, through the cache or bypassing it. Bypasses the
// cache only for sets that exceed the nearest cache.
double copy_seconds(machine::World& world, const machine::Group& group, const CopyBuffers& buffers,
                    std::int64_t set_bytes) {
  machine::Device& device = world.device();
  const std::size_t half = static_cast<std::size_t>(set_bytes / 2);
  std::byte* const source = buffers.source();
  std::byte* const target = buffers.target();
  if (!device.readable_by_host())
    return copy_seconds_of_gpu(device, buffers, half, batches_of(world, set_bytes));
  const auto alone = [&] {
    const auto copy_all = [&] {
      in_parts(world, 0, half, [&](std::size_t at, std::size_t bytes) {
        device.stream().copy(target + at, source + at, bytes);
      });
    };
    return seconds_of_all(world, group, set_bytes, copy_all,
                          [&] { device.stream().synchronize(); });
  };
  const auto seconds_by_all_threads = [&](const auto& copy_part) {
    const auto copy = [&] {
      machine::host::parallel(device.threads(), static_cast<std::int64_t>(half), 2,
                              machine::host::line_bytes, [&](std::int64_t begin, std::int64_t end) {
                                in_parts(world, static_cast<std::size_t>(begin),
                                         static_cast<std::size_t>(end),
                                         [&](std::size_t at, std::size_t bytes) {
                                           copy_part(target + at, source + at, bytes);
                                         });
                              });
    };
    return seconds_of_all(world, group, set_bytes, copy, [] {});
  };
  // A kernel uses all threads of its rank, so the rate of one thread would not be a limit.
  double best = alone();
  if (buffers.most_threads > 1) best = std::min(best, seconds_by_all_threads(std::memcpy));
  if (set_bytes >= cached_set)
    best = std::min(best, seconds_by_all_threads(machine::host::stream_copy));
  return best;
}

// Returns the bytes read plus written per second. 0: the buffers do not hold the set.
double copy_rate(machine::World& world, const machine::Group& group, const CopyBuffers& buffers,
                 std::int64_t set_bytes) {
  if (set_bytes > buffers.set_bytes) return 0;
  return static_cast<double>(set_bytes) / copy_seconds(world, group, buffers, set_bytes);
}

// Returns the bytes read plus written per second by updates in place: of halves of the set, or of
// three quarters, as optimizers do, which keeps more loads in flight.
double update_rate(machine::World& world, const machine::Group& group, const CopyBuffers& buffers,
                   std::int64_t set_bytes) {
  if (set_bytes > buffers.set_bytes) return 0;
  machine::Device& device = world.device();
  constexpr auto value_bytes = static_cast<std::int64_t>(sizeof(float));
  const std::int64_t half = set_bytes / 2;
  const double one = seconds_of_all(
      world, group, set_bytes,
      [&] {
        device.stream().kernels().reduce(machine::Reduction::sum, Dtype::float32, buffers.source(),
                                         buffers.target(), buffers.target(), half / value_bytes);
      },
      [&] { device.stream().synchronize(); });
  // No two arrays begin at the same place of a page.
  constexpr auto apart = static_cast<std::int64_t>(apart_bytes);
  const std::int64_t quarter = half / 2, count = quarter / value_bytes - 2 * apart / value_bytes;
  const auto values = [](std::byte* at) { return reinterpret_cast<float*>(at); };
  float* const in = values(buffers.source());
  float* const x = values(buffers.source() + quarter + apart);
  float* const y = values(buffers.target() + apart);
  float* const z = values(buffers.target() + quarter + 2 * apart);
  const double three = seconds_of_all(
      world, group, set_bytes,
      [&] {
        constexpr std::int64_t of_line = machine::host::line_bytes / value_bytes;
        machine::host::parallel(device.threads(), count, 7 * value_bytes, of_line,
                                [&](std::int64_t begin, std::int64_t end) {
                                  add_to_three(in + begin, x + begin, y + begin, z + begin,
                                               end - begin);
                                });
      },
      [] {});
  return std::max(3 * static_cast<double>(half) / one,
                  7 * static_cast<double>(count * value_bytes) / three);
}

// Gives each thread of the rank a core of its own, or none if bind is false. Every second
// measurement binds: threads may share a core for seconds, and a core of their own may be another
// program's.
machine::ThreadsOnCores threads_on_cores(machine::World& world, bool bind) {
  return {world.cores(), bind ? world.device().threads() : 1};
}

double product_rate(machine::World& world, Dtype dtype) {
  machine::Device& device = world.device();
  return matrix_rate(time_matrices(device, dtype, matrix_plan(has_gpu_speed(device)),
                                   &world.board().mine().progress));
}

// No rates if the transport fails: the cases that use it report that. A wait that fails means that
// a rank is lost.
ReceivingRates rates_between(machine::World& world, const machine::Group& group,
                             machine::Transport transport, const std::vector<std::int64_t>& sets) {
  try {
    return receiving_rates(world, group, transport, sets);
  } catch (const machine::MachineError& error) {
    if (is_of_a_wait(error)) throw;
    return {};
  }
}

// Returns the mean over the group of each rank's numbers.
std::vector<double> means(machine::World& world, const machine::Group& group,
                          const std::vector<double>& mine) {
  std::vector<double> sums(mine.size());
  for (const std::vector<double>& theirs : world.all_gather(group, mine))
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += theirs[i] / group.size();
  return sums;
}

// Returns the means on every rank of the world.
std::vector<double> agreed_means(machine::World& world, const machine::Group& group,
                                 const std::vector<double>& mine) {
  std::vector<double> result(mine.size());
  if (group.index >= 0) result = means(world, group, mine);
  return world.broadcast(world.group(), 0, result);
}

}  // namespace

double Rates::memory_bytes_per_second(double working_set_bytes, int ranks) const {
  return rate_at(copy_, ranks, working_set_bytes);
}

double Rates::update_bytes_per_second(double working_set_bytes, int ranks) const {
  return std::max(rate_at(update_, ranks, working_set_bytes),
                  rate_at(copy_, ranks, working_set_bytes));
}

double Rates::link_bytes_per_second(double working_set_bytes, const LinkKey& key) const {
  return rate_at(link_, key, working_set_bytes);
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
  for (const auto& [ranks, rates] : update_)
    for (const auto& [bytes, rate] : rates)
      names[fmt::format("update_GBps/ranks:{}/bytes:{:.0f}", ranks, bytes)] = rate / 1e9;
  for (const auto& [key, rates] : link_) {
    const char* state = key.transport != machine::Transport::shared_memory ? ""
                        : key.fresh                                        ? "/state:fresh"
                                                                           : "/state:unchanged";
    for (const auto& [bytes, rate] : rates)
      names[fmt::format("link_GBps/transport:{}{}/ranks:{}/bytes:{:.0f}", name(key.transport),
                        state, key.ranks, bytes)] = rate / 1e9;
  }
  for (const auto& [key, rate] : gemm_)
    names[fmt::format("gemm_GFLOPs/ranks:{}/dtype:{}", key.first, name(key.second))] = rate / 1e9;
  for (const auto& [dtype, rate] : peak_)
    if (rate > 0) names[fmt::format("peak_GFLOPs/dtype:{}", name(dtype))] = rate / 1e9;
  return names;
}

void Rates::set_memory(int ranks, double working_set_bytes, double bytes_per_second) {
  copy_[ranks][working_set_bytes] = bytes_per_second;
}

void Rates::set_update(int ranks, double working_set_bytes, double bytes_per_second) {
  update_[ranks][working_set_bytes] = bytes_per_second;
}

void Rates::set_link(const LinkKey& key, double working_set_bytes, double bytes_per_second) {
  link_[key][working_set_bytes] = bytes_per_second;
}

void Rates::set_flops(int ranks, Dtype dtype, double flops_per_second) {
  gemm_[{ranks, dtype}] = flops_per_second;
}

void Rates::set_peak(Dtype dtype, double flops_per_second) { peak_[dtype] = flops_per_second; }

std::string text_of(const RateKey& key) {
  switch (key.kind) {
    case RateKey::Kind::matrix:
      return fmt::format("the matrix rate of {}", name(key.dtype));
    case RateKey::Kind::memory:
      return "the copy rate";
    case RateKey::Kind::update:
      return "the rate of updates in place";
    case RateKey::Kind::link:
      return fmt::format("the rate of {}", name(key.transport));
    case RateKey::Kind::none:
      break;
  }
  return "no rate";
}

void Rates::measure(machine::World& world, int ranks) {
  world.set_active_ranks(ranks);
  if (copy_.contains(ranks) || without_rates_.contains(ranks)) return;
  const machine::Group group = machine::first_ranks("world", ranks, world.rank());
  if (ranks_take_turns(world, group)) {
    without_rates_.insert(ranks);
    return;
  }
  // From rank 0, because hosts may have different caches.
  const std::vector<std::int64_t> sizes =
      world.broadcast(world.group(), 0, sets(largest_copied(world.device(), ranks)));
  const bool gpu = has_gpu_speed(world.device());
  const std::vector<Dtype> dtypes = matrix_dtypes(gpu);
  // A GPU's copy rate is that of sums already.
  std::vector<std::int64_t> updated;
  if (world.device().readable_by_host())
    std::ranges::copy_if(sizes, std::back_inserter(updated),
                         [](std::int64_t set) { return set >= least_updated; });
  std::vector<double> copies(sizes.size()), updates(updated.size()), products(dtypes.size());
  if (group.index >= 0) {
    const CopyBuffers buffers = copy_buffers(world, group, sizes);
    // All ranks begin each measurement together, so that they share the memory bandwidth
    // throughout.
    const auto measure_all = [&](std::vector<double>& rates, const auto& all, const auto& rate_of) {
      for (std::size_t i = 0; i < all.size(); ++i) {
        world.barrier(group);
        raise(rates[i], rate_of(all[i]));
      }
    };
    const auto copy_of = [&](std::int64_t set) { return copy_rate(world, group, buffers, set); };
    const auto update_of = [&](auto set) { return update_rate(world, group, buffers, set); };
    const auto product_of = [&](Dtype dtype) { return product_rate(world, dtype); };
    measure_all(copies, sizes, copy_of);
    measure_all(updates, updated, update_of);
    measure_all(products, dtypes, product_of);
    // The best of two turns, because other work seldom disturbs both. One turn is enough for large
    // copies, and for seconds of work of a GPU.
    const std::span repeated(sizes.begin(), std::ranges::upper_bound(sizes, repeated_set));
    const auto bound = threads_on_cores(world, true);
    measure_all(copies, repeated, copy_of);
    if (!gpu) measure_all(products, dtypes, product_of);
  }
  copies = agreed_means(world, group, copies);
  updates = agreed_means(world, group, updates);
  if (world.device().readable_by_host())
    for (auto* const rates : {&copies, &updates}) raise_halves(*rates);
  products = agreed_means(world, group, products);
  for (std::size_t i = 0; i < sizes.size(); ++i)
    set_memory(ranks, static_cast<double>(sizes[i]), copies[i]);
  for (std::size_t i = 0; i < updated.size(); ++i)
    set_update(ranks, static_cast<double>(updated[i]), updates[i]);
  for (std::size_t i = 0; i < dtypes.size(); ++i) set_flops(ranks, dtypes[i], products[i]);
  if (gpu)
    for (const Dtype dtype : dtypes)
      set_peak(dtype, machine::dense_peak(world.device().compute_units(), dtype));
}

void Rates::measure_link(machine::World& world, int ranks, machine::Transport transport) {
  world.set_active_ranks(ranks);
  if (ranks < 2 || without_rates_.contains(ranks) || link_.contains({ranks, transport, false}))
    return;
  const machine::Group group = machine::first_ranks("world", ranks, world.rank());
  const std::vector<std::int64_t> sizes =
      world.broadcast(world.group(), 0, sets(largest_sent(world.device(), transport, ranks)));
  // The ranks agree on a missing link like on a rate.
  ReceivingRates mine;
  if (group.index >= 0) mine = rates_between(world, group, transport, sizes);
  for (const bool is_fresh : {false, true}) {
    std::vector<double>& measured = is_fresh ? mine.fresh : mine.unchanged;
    measured.resize(sizes.size());
    const std::vector<double> rates = agreed_means(world, group, measured);
    // Empty if the transport cannot connect the ranks, so it is not measured again.
    Curve& curve = link_[{ranks, transport, is_fresh}];
    for (std::size_t i = 0; i < sizes.size(); ++i)
      if (rates[i] > 0) curve[static_cast<double>(sizes[i])] = rates[i];
  }
}

bool Rates::measure_again(machine::World& world, const RateKey& key) {
  if (key.kind == RateKey::Kind::none) return false;
  // A power of two represents the working sets that have nearly the same rates.
  const RateKey counted =
      key.kind == RateKey::Kind::matrix
          ? RateKey{key.kind, key.ranks, key.dtype, {}, 0}
          : RateKey{key.kind,
                    key.ranks,
                    {},
                    key.transport,
                    std::exp2(std::ilogb(std::max(1.0, key.working_set_bytes)))};
  if (again_[counted] >= most_again) return false;
  ++again_[counted];
  const machine::Group group = machine::first_ranks("world", key.ranks, world.rank());
  const auto measure_sets = [&](Curve& curve, const auto& measured_at) {
    const std::vector<std::int64_t> sets = sets_around(curve, key.working_set_bytes);
    if (sets.empty()) return;
    std::vector<double> mine = measured_at(sets);
    mine.resize(sets.size());
    const std::vector<double> rates = means(world, group, mine);
    for (std::size_t i = 0; i < sets.size(); ++i)
      raise(curve[static_cast<double>(sets[i])], rates[i]);
  };
  if (key.kind == RateKey::Kind::matrix) {
    const auto bound = threads_on_cores(world, again_[counted] % 2 == 1);
    world.barrier(group);
    raise(gemm_[{key.ranks, key.dtype}], means(world, group, {product_rate(world, key.dtype)})[0]);
    return true;
  }
  if (key.kind == RateKey::Kind::link)
    measure_sets(link_[{key.ranks, key.transport, false}], [&](const auto& sets) {
      return rates_between(world, group, key.transport, sets).unchanged;
    });
  const auto measure_memory = [&](Curve& curve, const auto& rate_of) {
    measure_sets(curve, [&](const auto& sets) {
      // The first copies fetch a set into a large cache, which a case's buffers are in.
      constexpr int times = 4;
      std::vector<double> rates(sets.size());
      const CopyBuffers buffers = copy_buffers(world, group, sets);
      for (std::size_t i = 0; i < times * sets.size(); ++i) {
        const auto bound = threads_on_cores(world, i % 2 == 1);
        world.barrier(group);
        raise(rates[i / times], rate_of(world, group, buffers, sets[i / times]));
      }
      return rates;
    });
    if (world.device().readable_by_host())
      for (const std::int64_t set : sets_around(curve, key.working_set_bytes))
        raise_half(curve, static_cast<double>(set));
  };
  // Over shared_memory the copy rate is part of the limit of a link, too.
  if (key.kind == RateKey::Kind::update && !update_[key.ranks].empty())
    measure_memory(update_[key.ranks], update_rate);
  else if (key.kind != RateKey::Kind::link || key.transport == machine::Transport::shared_memory)
    measure_memory(copy_[key.ranks], copy_rate);
  return true;
}

}  // namespace harness

#include "harness/rates.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <vector>

#include "machine/device/gemm.h"
#include "machine/device/kernels.h"
#include "machine/device/tensor.h"

namespace harness {
namespace {

using machine::Dtype;

constexpr Dtype measured_dtypes[] = {Dtype::float32, Dtype::bfloat16};
constexpr std::int64_t smallest_set = 4 << 10, largest_set = 64 << 20;
constexpr std::int64_t gemm_extent = 512;

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// How one measurement is taken. A limit is what nothing goes beyond, so the best of several batches
// counts; but where ranks share a core, the best is a batch that had it alone: there the mean
// counts.
struct Timing {
  double batch_s = 1e-3, total_s = 8e-3;
  bool shares_cores = false;
};

// Seconds of one call.
template <class Call>
double seconds_of(machine::Stream& stream, Call call, Timing timing) {
  const double batch_s = timing.batch_s,
               total_s = timing.shares_cores ? 5 * timing.total_s : timing.total_s;
  call();
  stream.synchronize();
  double best = std::numeric_limits<double>::infinity();
  const double begin = now_s();
  std::int64_t calls = 0;
  for (int count = 1; best > 1e300 || now_s() - begin < total_s;) {
    const double batch_begin = now_s();
    for (int i = 0; i < count; ++i) call();
    stream.synchronize();
    calls += count;
    const double elapsed = now_s() - batch_begin;
    if (elapsed < batch_s && now_s() - begin < total_s) {
      count = static_cast<int>(
          std::clamp(count * 1.2 * batch_s / std::max(elapsed, 1e-9), count + 1.0, 10.0 * count));
      continue;
    }
    best = std::min(best, elapsed / count);
  }
  return timing.shares_cores ? (now_s() - begin) / static_cast<double>(calls) : best;
}

// Whether two ranks of the group have a core in common.
bool cores_are_shared(machine::World& world, const machine::Group& group) {
  std::string mine;
  for (int core : world.cores()) mine += fmt::format("{}/{}\n", world.host(world.rank()), core);
  std::set<std::string> seen;
  for (const std::string& theirs : world.all_gather(group, mine))
    for (std::size_t begin = 0, end; (end = theirs.find('\n', begin)) != std::string::npos;
         begin = end + 1)
      if (!seen.insert(theirs.substr(begin, end - begin)).second) return true;
  return false;
}

double copy_seconds(machine::Device& device, std::int64_t set_bytes, bool shares_cores) {
  const std::size_t half = static_cast<std::size_t>(set_bytes / 2);
  const machine::Memory from = device.allocate(half, machine::Category::buffers);
  const machine::Memory to = device.allocate(half, machine::Category::buffers);
  // Touched first: untouched pages all read the same zero page.
  const std::vector<char> pattern(half, 1);
  device.stream().copy(from.data(), pattern.data(), half);
  const auto copy = [&] { device.stream().copy(to.data(), from.data(), half); };
  return seconds_of(device.stream(), copy,
                    {1e-3, set_bytes > (4 << 20) ? 30e-3 : 8e-3, shares_cores});
}

double gemm_seconds(machine::Device& device, Dtype dtype, bool shares_cores) {
  const machine::Shape shape{gemm_extent, gemm_extent};
  const machine::Tensor a(device, dtype, shape, machine::Category::buffers);
  const machine::Tensor b(device, dtype, shape, machine::Category::buffers);
  const machine::Tensor c(device, dtype, shape, machine::Category::buffers);
  machine::Kernels& kernels = device.stream().kernels();
  kernels.fill_uniform(a, 1, {0, 0, gemm_extent}, -1, 1);
  kernels.fill_uniform(b, 2, {0, 0, gemm_extent}, -1, 1);
  const auto multiply = [&] { gemm(device.stream(), matrix(a), matrix(b), matrix(c)); };
  return seconds_of(device.stream(), multiply, {1e-3, 40e-3, shares_cores});
}

// The mean over the group of each rank's numbers, on every rank.
std::vector<double> means(machine::World& world, const machine::Group& group,
                          const std::vector<double>& mine) {
  const std::size_t bytes = mine.size() * sizeof(double);
  std::vector<double> sums(mine.size());
  for (const std::string& theirs :
       world.all_gather(group, {reinterpret_cast<const char*>(mine.data()), bytes})) {
    std::vector<double> values(mine.size());
    std::memcpy(values.data(), theirs.data(), std::min(bytes, theirs.size()));
    for (std::size_t i = 0; i < values.size(); ++i) sums[i] += values[i] / group.size();
  }
  return sums;
}

}  // namespace

double Rates::memory_bytes_per_second(double working_set_bytes, int ranks) const {
  const auto at_ranks = copy_.find(ranks);
  if (at_ranks == copy_.end() || at_ranks->second.empty()) return 0;
  const auto& rates = at_ranks->second;
  const auto above = rates.lower_bound(working_set_bytes);
  if (above == rates.begin()) return above->second;
  if (above == rates.end()) return rates.rbegin()->second;
  const auto below = std::prev(above);
  const double place =
      std::log(working_set_bytes / below->first) / std::log(above->first / below->first);
  return below->second + place * (above->second - below->second);
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
  for (const auto& [key, rate] : gemm_)
    names[fmt::format("gemm_GFLOPs/ranks:{}/dtype:{}", key.first, name(key.second))] = rate / 1e9;
  return names;
}

void Rates::set_memory(int ranks, double working_set_bytes, double bytes_per_second) {
  copy_[ranks][working_set_bytes] = bytes_per_second;
}

void Rates::set_flops(int ranks, Dtype dtype, double flops_per_second) {
  gemm_[{ranks, dtype}] = flops_per_second;
}

void Rates::measure(machine::World& world, int ranks) {
  if (copy_.contains(ranks)) return;
  world.set_active_ranks(ranks);
  const machine::Group group = machine::first_ranks("world", ranks, world.rank());
  std::vector<double> rates;
  for (std::int64_t bytes = smallest_set; bytes <= largest_set; bytes *= 4)
    rates.push_back(static_cast<double>(bytes));
  const std::size_t sets = rates.size();
  for (Dtype dtype : measured_dtypes) {
    (void)dtype;
    rates.push_back(2.0 * gemm_extent * gemm_extent * gemm_extent);
  }
  std::vector<double> work = rates;
  if (group.index >= 0) {
    const bool shared = cores_are_shared(world, group);
    // All begin each measurement together, so that they share the memory's bandwidth throughout.
    for (std::size_t i = 0; i < work.size(); ++i) {
      world.barrier(group);
      const double seconds =
          i < sets ? copy_seconds(world.device(), static_cast<std::int64_t>(work[i]), shared)
                   : gemm_seconds(world.device(), measured_dtypes[i - sets], shared);
      rates[i] = work[i] / seconds;
    }
    rates = means(world, group, rates);
  }
  const std::string numbers(reinterpret_cast<const char*>(rates.data()),
                            rates.size() * sizeof(double));
  const std::string agreed = world.broadcast(world.group(), 0, numbers);
  std::memcpy(rates.data(), agreed.data(), agreed.size());
  for (std::size_t i = 0; i < sets; ++i) set_memory(ranks, work[i], rates[i]);
  for (std::size_t i = sets; i < rates.size(); ++i)
    set_flops(ranks, measured_dtypes[i - sets], rates[i]);
}

}  // namespace harness

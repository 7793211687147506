#include "collectives/communicator/choose.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "collectives/layout.h"

namespace collectives {

using machine::Category;
using machine::Tensor;

namespace {

constexpr int rounds = 9;
constexpr double least_s = 50e-6;  // minimum of a batch

}  // namespace

std::string Choice::text() const {
  if (!next) return std::string(best->name);
  return fmt::format("{}, {:.2f} times as fast as {}", best->name, next_s / best_s, next->name);
}

Choice choose(Communicator& group, machine::Operation operation, machine::Dtype dtype,
              std::int64_t count, machine::Reduction reduction, int root,
              const std::shared_ptr<const TrafficMatrix>& traffic) {
  const Call call{group.rank(), group.size(), 1, root, group.inner(), traffic.get()};
  std::vector<const Algorithm*> candidates;
  for (const Algorithm& algorithm : algorithms())
    if (algorithm.operation == operation && algorithm.refuses(call).empty())
      candidates.push_back(&algorithm);

  const Extents held = extents(operation, call);
  const BufferElements elements = buffer_elements(operation, call, count);
  const auto buffer = [&](Extent extent, std::int64_t size) {
    Tensor tensor;
    if (extent != Extent::none) {
      tensor = Tensor(group.device(), dtype, {size}, Category::buffers);
      group.device().stream().kernels().fill(tensor, 1);
    }
    return tensor;
  };
  const Tensor in = buffer(held.input, elements.input), out = buffer(held.output, elements.output);
  const auto seconds = [&](const Algorithm& algorithm, int runs) {
    group.barrier();
    group.device().stream().synchronize();
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < runs; ++i)
      group.run(operation, algorithm.name, in, out, reduction, root, traffic);
    group.device().stream().synchronize();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / runs;
  };
  // The times of this rank. slowest() replaces each time by that of the slowest rank, equal on all
  // ranks.
  std::vector<double> times;
  const auto slowest = [&] {
    const Tensor all(group.device(), machine::Dtype::float64,
                     {static_cast<std::int64_t>(times.size())}, Category::buffers);
    machine::from_doubles(all, times);
    group.all_reduce(all, all, "direct", machine::Reduction::max);
    times = machine::to_doubles(all);
  };

  for (const Algorithm* algorithm : candidates) {
    seconds(*algorithm, 1);
    times.push_back(seconds(*algorithm, 3));
  }
  slowest();
  std::vector<int> batches;
  for (const double time : times)
    batches.push_back(static_cast<int>(std::clamp(least_s / std::max(time, 1e-9), 1.0, 1e5)));
  times.clear();
  for (int round = 0; round < rounds; ++round)
    for (std::size_t i = 0; i < candidates.size(); ++i)
      times.push_back(seconds(*candidates[i], batches[i]));
  slowest();

  Choice choice;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    std::vector<double> of_rounds;
    for (std::size_t round = 0; round < rounds; ++round)
      of_rounds.push_back(times[round * candidates.size() + i]);
    std::nth_element(of_rounds.begin(), of_rounds.begin() + rounds / 2, of_rounds.end());
    const double median = of_rounds[rounds / 2];
    if (!choice.best || median < choice.best_s) {
      choice.next = choice.best;
      choice.next_s = choice.best_s;
      choice.best = candidates[i];
      choice.best_s = median;
    } else if (!choice.next || median < choice.next_s) {
      choice.next = candidates[i];
      choice.next_s = median;
    }
  }
  return choice;
}

}  // namespace collectives

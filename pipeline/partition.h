#pragma once
// Return the number of layers of each part of a pipeline, first to last, at least one each. The
// names are DeepSpeed's partition_method:
//
//   partition_uniform(7, 3)                    {3, 2, 2}   equal sizes, the first parts one more
//   partition_balanced({5, 1, 1, 1, 1, 4}, 3)  {1, 4, 1}   minimum cost of the costliest part
//
// The caller defines the cost of a layer: its parameters, or a time, in whole units. Among the
// divisions with the same maximum cost, the one with the smallest sum of squared costs is taken. If
// there are several, the one with the smallest last parts is taken. Both throw
// std::invalid_argument if there are fewer layers than parts.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "pipeline/number_text.h"

namespace pipeline {

constexpr void check_partition(int layers, int parts) {
  if (parts >= 1 && layers >= parts) return;
  std::string text = "a pipeline of ";
  append_number(text, parts);
  text += " parts for ";
  append_number(text, layers);
  throw std::invalid_argument(text + " layers: every part needs at least one layer");
}

constexpr std::vector<int> partition_uniform(int layers, int parts) {
  check_partition(layers, parts);
  std::vector<int> sizes(parts, layers / parts);
  for (int i = 0; i < layers % parts; ++i) ++sizes[i];
  return sizes;
}

constexpr std::vector<int> partition_balanced(const std::vector<std::int64_t>& costs, int parts) {
  check_partition(static_cast<int>(costs.size()), parts);
  const std::size_t layers = costs.size(), last = static_cast<std::size_t>(parts);
  std::vector<std::int64_t> before = {0};  // by index: cost of the earlier layers
  for (const std::int64_t cost : costs) before.push_back(before.back() + cost);

  // Returns the minimum value over the divisions of the first `end` layers, for each number of
  // parts. `put` adds the cost of a part to the value of the parts before it.
  struct Best {
    double value = std::numeric_limits<double>::infinity();
    std::size_t begin = 0;  // of the last part
  };
  const auto divide = [&](const auto& put) {
    std::vector<std::vector<Best>> best(last + 1, std::vector<Best>(layers + 1));
    best[0][0].value = 0;
    for (std::size_t part = 1; part <= last; ++part)
      for (std::size_t end = part; end <= layers; ++end)
        for (std::size_t begin = part - 1; begin < end; ++begin) {
          const double value =
              put(best[part - 1][begin].value, static_cast<double>(before[end] - before[begin]));
          // Takes the last of equal values, because its part is the smallest.
          if (value <= best[part][end].value) best[part][end] = {value, begin};
        }
    return best;
  };
  const double most =
      divide([](double others, double cost) { return std::max(others, cost); })[last][layers].value;
  const auto best = divide([most](double others, double cost) {
    return cost > most ? std::numeric_limits<double>::infinity() : others + cost * cost;
  });
  std::vector<int> sizes(last, 0);
  for (std::size_t part = last, end = layers; part > 0; --part) {
    sizes[part - 1] = static_cast<int>(end - best[part][end].begin);
    end = best[part][end].begin;
  }
  return sizes;
}

static_assert(partition_uniform(7, 3) == std::vector{3, 2, 2});
static_assert(partition_balanced({5, 1, 1, 1, 1, 4}, 3) == std::vector{1, 4, 1});
static_assert(partition_balanced({1, 1, 1, 1, 1}, 4) == std::vector{2, 1, 1, 1});

}  // namespace pipeline

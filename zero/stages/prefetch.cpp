#include "zero/stages/prefetch.h"

#include <algorithm>
#include <set>

namespace zero {

Uses bucket_uses(const Layout& layout, const std::vector<std::vector<int>>& uses) {
  Uses result;
  for (const std::vector<int>& use : uses) {
    std::vector<int>& buckets = result.emplace_back();
    for (const int row : use) {
      const int bucket = layout.bucket_of[static_cast<std::size_t>(row)];
      if (!layout.buckets[static_cast<std::size_t>(bucket)].persistent &&
          std::ranges::find(buckets, bucket) == buckets.end())
        buckets.push_back(bucket);
    }
  }
  return result;
}

namespace {

bool stays(const Uses& stay, std::size_t use, int bucket) {
  return use < stay.size() && std::ranges::find(stay[use], bucket) != stay[use].end();
}

}  // namespace

Uses kept(const Uses& uses, const std::vector<std::int64_t>& elements,
          std::int64_t max_reuse_distance) {
  Uses stay(uses.size());
  for (std::size_t now = 0; now < uses.size(); ++now) {
    std::int64_t distance = 0;
    std::set<int> next;
    for (std::size_t later = now + 1; later < uses.size() && distance < max_reuse_distance; ++later)
      for (const int bucket : uses[later]) {
        next.insert(bucket);
        distance += elements[static_cast<std::size_t>(bucket)];
      }
    for (const int bucket : uses[now])
      if (next.contains(bucket)) stay[now].push_back(bucket);
  }
  return stay;
}

std::vector<std::vector<int>> prefetches(const Uses& uses,
                                         const std::vector<std::int64_t>& elements,
                                         std::int64_t prefetch_bucket_size,
                                         std::int64_t max_live_parameters, const Uses& stay) {
  std::vector<std::vector<int>> starts(uses.size());
  std::set<int> live;
  std::int64_t live_elements = 0;
  const auto size = [&](int bucket) { return elements[static_cast<std::size_t>(bucket)]; };
  for (std::size_t now = 0; now < uses.size(); ++now) {
    for (const int bucket : uses[now])
      if (live.insert(bucket).second) live_elements += size(bucket);
    std::set<int> seen(uses[now].begin(), uses[now].end());
    std::int64_t ahead = 0;
    bool fits = true;
    for (std::size_t later = now + 1; later < uses.size() && fits; ++later) {
      for (const int bucket : uses[later]) {
        if (!seen.insert(bucket).second) continue;
        ahead += size(bucket);
        if (live.contains(bucket)) continue;
        fits = ahead <= prefetch_bucket_size && live_elements + size(bucket) <= max_live_parameters;
        if (!fits) break;
        live.insert(bucket);
        live_elements += size(bucket);
        starts[now].push_back(bucket);
      }
    }
    for (const int bucket : uses[now]) {
      if (stays(stay, now, bucket)) continue;
      live.erase(bucket);
      live_elements -= size(bucket);
    }
  }
  return starts;
}

std::vector<int> fetches(const Uses& uses, const std::vector<std::vector<int>>& starts,
                         const Uses& stay) {
  std::vector<int> order;
  std::set<int> live;
  for (std::size_t now = 0; now < uses.size(); ++now) {
    for (const std::vector<int>* buckets : {&uses[now], &starts[now]})
      for (const int bucket : *buckets)
        if (live.insert(bucket).second) order.push_back(bucket);
    for (const int bucket : uses[now])
      if (!stays(stay, now, bucket)) live.erase(bucket);
  }
  return order;
}

}  // namespace zero

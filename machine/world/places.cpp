#include "machine/world/places.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "machine/world/binding.h"

namespace machine {
namespace {

using Cores = std::vector<int>;  // ascending

bool includes(const Cores& outer, const Cores& inner) {
  return std::ranges::includes(outer, inner);
}

Cores common(const Cores& one, const Cores& other) {
  Cores both;
  std::ranges::set_intersection(one, other, std::back_inserter(both));
  return both;
}

Cores without(const Cores& cores, const std::set<int>& taken) {
  Cores rest;
  std::ranges::remove_copy_if(cores, std::back_inserter(rest),
                              [&](int core) { return taken.contains(core); });
  return rest;
}

// Returns all cores of the packages of these cores.
Cores packages_of(const HostTopology& host, const Cores& cores) {
  std::set<int> packages;
  for (const int core : cores) packages.insert(host.cores[static_cast<std::size_t>(core)].package);
  Cores all;
  for (std::size_t core = 0; core < host.cores.size(); ++core)
    if (packages.contains(host.cores[core].package)) all.push_back(static_cast<int>(core));
  return all;
}

// Returns 0 if some of the cores are next to the GPU, 1 if some are in its package, else 2.
int distance(const HostTopology& host, const std::string& bus_id, const Cores& cores) {
  const HostTopology::Device* const device = host.find(bus_id);
  if (!device || !common(device->cores, cores).empty()) return 0;
  return common(packages_of(host, device->cores), cores).empty() ? 2 : 1;
}

// Ranks that see the fewest GPUs choose first, because they have no alternative.
std::vector<int> choose_gpus(const HostTopology& host, const std::vector<RankOfHost>& ranks) {
  std::vector<std::size_t> order(ranks.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](std::size_t rank) { return ranks[rank].visible.size(); });
  std::map<std::uint64_t, int> users;  // by identity
  std::vector<int> chosen(ranks.size(), -1);
  for (const std::size_t rank : order) {
    const auto& [cores, visible] = ranks[rank];
    std::tuple<int, int> best;
    for (std::size_t gpu = 0; gpu < visible.size(); ++gpu) {
      const std::tuple cost(users[visible[gpu].identity],
                            distance(host, visible[gpu].bus_id, cores));
      if (chosen[rank] >= 0 && cost >= best) continue;
      best = cost;
      chosen[rank] = static_cast<int>(gpu);
    }
    if (chosen[rank] >= 0) ++users[visible[static_cast<std::size_t>(chosen[rank])].identity];
  }
  return chosen;
}

// Returns the number of objects above both devices.
std::ptrdiff_t nearness(const HostTopology::Device& one, const HostTopology::Device& other) {
  return std::ranges::mismatch(one.path, other.path).in1 - one.path.begin();
}

// Chooses the adapters of GPUs one after another.
class Adapters {
 public:
  explicit Adapters(const HostTopology& host) : host_(host), users_(host.adapters.size()) {}

  std::string nearest(const std::string& bus_id) {
    const HostTopology::Device* const gpu = host_.find(bus_id);
    if (!gpu || host_.adapters.empty()) return "";
    if (const auto known = of_gpu_.find(bus_id); known != of_gpu_.end()) return known->second;
    std::vector<std::size_t> all(host_.adapters.size());
    std::iota(all.begin(), all.end(), 0);
    const std::size_t best = *std::ranges::min_element(all, {}, [&](std::size_t adapter) {
      return std::pair(-nearness(*gpu, host_.adapters[adapter].device), users_[adapter]);
    });
    ++users_[best];
    return of_gpu_[bus_id] = host_.adapters[best].name;
  }

 private:
  const HostTopology& host_;
  std::vector<int> users_;                     // by adapter
  std::map<std::string, std::string> of_gpu_;  // ranks of one GPU have the same adapter
};

// Ranks that want the same cores.
using Wishes = std::map<Cores, std::vector<std::size_t>>;

// Returns the first of: the cores next to the GPU, those of its package, all. A level is left out
// if it has none of the cores.
Wishes wishes_of(const HostTopology& host, const std::vector<std::string>& bus_ids,
                 const Cores& cores) {
  std::vector<std::vector<Cores>> levels;  // by rank
  for (const std::string& bus_id : bus_ids) {
    const HostTopology::Device* const device = host.find(bus_id);
    std::vector<Cores>& its = levels.emplace_back();
    if (device)
      for (const Cores& part : {device->cores, packages_of(host, device->cores)})
        if (Cores some = common(part, cores); !some.empty()) its.push_back(std::move(some));
    its.push_back(cores);
  }
  std::vector<std::size_t> level(bus_ids.size());
  for (;;) {
    Wishes wishes;
    for (std::size_t rank = 0; rank < bus_ids.size(); ++rank)
      wishes[levels[rank][level[rank]]].push_back(rank);
    bool widened = false;
    for (const auto& [wanted, ranks] : wishes)
      if (ranks.size() > wanted.size())
        for (const std::size_t rank : ranks)
          if (level[rank] + 1 < levels[rank].size()) {
            ++level[rank];
            widened = true;
          }
    if (!widened) return wishes;
  }
}

}  // namespace

std::vector<std::vector<int>> cores_near(const HostTopology& host,
                                         const std::vector<std::string>& bus_ids,
                                         const std::vector<int>& cores) {
  Cores given = cores;
  std::ranges::sort(given);
  const Wishes wishes = wishes_of(host, bus_ids, given);
  // Wishes are parts of a tree, so two of them are equal, nested or disjoint. The smallest first.
  std::vector<const Wishes::value_type*> order;
  for (const auto& wish : wishes) order.push_back(&wish);
  std::ranges::stable_sort(order, {}, [](const auto* wish) { return wish->first.size(); });
  std::vector<std::vector<int>> result(bus_ids.size());
  std::set<int> taken;
  for (const auto* wish : order) {
    const auto& [wanted, ranks] = *wish;
    std::size_t fair = wanted.size();
    for (const auto& [outer, outer_ranks] : wishes) {
      if (outer.size() == wanted.size() || !includes(outer, wanted)) continue;
      std::size_t all = 0;
      for (const auto& [inner, inner_ranks] : wishes)
        if (includes(outer, inner)) all += inner_ranks.size();
      fair = std::min(fair, std::max(ranks.size(), outer.size() * ranks.size() / all));
    }
    Cores free = without(wanted, taken);
    if (free.empty()) free = wanted;
    free.resize(std::min(free.size(), fair));
    taken.insert(free.begin(), free.end());
    for (std::size_t i = 0; i < ranks.size(); ++i)
      result[ranks[i]] = cores_of(static_cast<int>(i), static_cast<int>(ranks.size()), free);
  }
  return result;
}

std::vector<Place> places(const HostTopology& host, const std::vector<RankOfHost>& ranks) {
  const std::vector<int> gpus = choose_gpus(host, ranks);
  std::vector<Place> result;
  std::vector<std::string> bus_ids;
  Adapters adapters(host);
  bool bound = false;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    Place& place = result.emplace_back();
    place.gpu = gpus[rank];
    place.cores = ranks[rank].cores;
    bound = bound || place.cores != ranks.front().cores;
    if (place.gpu >= 0) {
      place.bus_id = ranks[rank].visible[static_cast<std::size_t>(place.gpu)].bus_id;
      if (const HostTopology::Device* const device = host.find(place.bus_id))
        place.numa_node = device->numa_node;
      place.adapter = adapters.nearest(place.bus_id);
    }
    bus_ids.push_back(place.bus_id);
  }
  if (bound) return result;
  std::vector<std::vector<int>> cores = cores_near(host, bus_ids, ranks.front().cores);
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    result[rank].cores = std::move(cores[rank]);
  return result;
}

}  // namespace machine

#include "harness/diagnose/findings.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace harness {

void Findings::add(Level level, std::string kind, std::vector<int> ranks, std::string evidence) {
  std::vector<std::string> hosts;
  for (const int rank : ranks)
    if (const std::string& name = host(rank);
        !name.empty() && std::ranges::find(hosts, name) == hosts.end())
      hosts.push_back(name);
  all_.push_back({level, std::move(kind), std::move(ranks), std::move(hosts), std::move(evidence)});
}

void Findings::add_ranks(const std::string& kind, const std::map<int, std::string>& evidence) {
  std::map<std::string, std::vector<int>> ranks_of;
  for (std::size_t rank = 0; rank < hosts_.size(); ++rank)
    ranks_of[hosts_[rank]].push_back(static_cast<int>(rank));
  std::set<std::string> whole;
  for (const auto& [name, ranks] : ranks_of)
    if (ranks_of.size() > 1 && ranks.size() > 1 &&
        std::ranges::all_of(ranks, [&](int rank) { return evidence.contains(rank); })) {
      whole.insert(name);
      add(Level::warning, kind, ranks,
          fmt::format("all {} ranks of {}; rank {} {}", ranks.size(), name, ranks.front(),
                      evidence.at(ranks.front())));
    }
  for (const auto& [rank, text] : evidence)
    if (!whole.contains(host(rank))) add(Level::warning, kind, {rank}, text);
}

const std::string& Findings::host(int rank) const {
  static const std::string unknown;
  const auto index = static_cast<std::size_t>(rank);
  return index < hosts_.size() ? hosts_[index] : unknown;
}

}  // namespace harness

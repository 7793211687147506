#include "harness/unit/launch_ranks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "harness/unit/sweep.h"

namespace harness {

std::vector<int> launch_ranks(const std::vector<int>& ranks_of_hosts,
                              machine::Device::Kind device) {
  const int all = std::accumulate(ranks_of_hosts.begin(), ranks_of_hosts.end(), 0);
  const bool fixed_are_enough = ranks_of_hosts.size() <= 1 && all <= largest_fixed_ranks &&
                                device == machine::Device::Kind::host;
  if (all < 2 || fixed_are_enough) return {};
  std::set<int> numbers{ranks_of_hosts.front(), all};
  numbers.erase(1);  // every unit has cases on one rank, or requires two
  return {numbers.begin(), numbers.end()};
}

std::vector<int> launch_ranks(const machine::World& world, machine::Device::Kind device) {
  std::vector<std::string> hosts;  // in the order of their first ranks
  std::vector<int> ranks;
  for (int rank = 0; rank < world.size(); ++rank) {
    const auto host = std::ranges::find(hosts, world.host(rank));
    if (host == hosts.end()) {
      hosts.push_back(world.host(rank));
      ranks.push_back(1);
    } else {
      ++ranks[static_cast<std::size_t>(host - hosts.begin())];
    }
  }
  return launch_ranks(ranks, device);
}

std::string launch_ranks_text(const std::vector<int>& ranks) {
  return fmt::format("{}", fmt::join(ranks, ","));
}

std::vector<int> parse_launch_ranks(const std::string& text) {
  return text.empty() ? std::vector<int>() : AxisText<int>::parse_list("ranks", text);
}

}  // namespace harness

#include "collectives/rounds.h"

#include <algorithm>

#include "collectives/execute.h"
#include "collectives/layout.h"
#include "collectives/round_search.h"

namespace collectives {

std::vector<Round> rounds_of(const Algorithm& algorithm, const Call& call, std::int64_t count,
                             Agreement& agreement) {
  RoundSearch rank(algorithm, call, count);
  while (!rank.go_on(agreement)) continue;
  return rank.rounds();
}

std::size_t staging_bytes(const Algorithm& algorithm, const Call& call, std::int64_t count,
                          machine::Dtype dtype, const std::vector<Round>& rounds) {
  const Call cut = with_pieces(algorithm, call, count, dtype);
  const Plan plan = algorithm.plan(cut);
  const Layout layout(algorithm.operation, plan, cut, count);
  std::size_t most = 0;
  for (const Round& round : rounds) {
    std::size_t staged = 0;
    for (const std::size_t i : round.transfers)
      if (plan.steps[i].verb == Verb::receive_reduce)
        staged +=
            staged_bytes(static_cast<std::size_t>(layout.elements(plan.steps[i].target).size()) *
                         size_of(dtype));
    most = std::max(most, staged);
  }
  return most;
}

}  // namespace collectives

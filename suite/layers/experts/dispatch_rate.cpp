#include "suite/layers/experts/dispatch_rate.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "harness/measure/statistics.h"
#include "machine/base/clock.h"

namespace suite {

double dispatch_over_messages(machine::World& world, collectives::Communicator& group,
                              const std::function<void()>& dispatch,
                              const std::function<void()>& messages) {
  constexpr int rounds = 15;
  constexpr double least_s = 1e-3;  // of a measurement
  int times = 1;
  const auto seconds_of = [&](const std::function<void()>& work) {
    group.barrier();
    group.device().stream().synchronize();
    const double begin = machine::steady_s();
    for (int i = 0; i < times; ++i) work();
    group.device().stream().synchronize();
    return machine::steady_s() - begin;
  };
  const auto slowest = [&](const std::vector<double>& mine) {
    std::vector<double> all(mine.size());
    for (const std::vector<double>& theirs : world.all_gather(group.group(), mine))
      for (std::size_t i = 0; i < all.size(); ++i) all[i] = std::max(all[i], theirs[i]);
    return all;
  };
  seconds_of(dispatch);  // makes plans and connections
  seconds_of(messages);
  times = static_cast<int>(std::clamp(least_s / slowest({seconds_of(dispatch)})[0], 1.0, 1e4));
  std::vector<double> of_dispatch, of_messages, ratios;
  for (int round = 0; round < rounds; ++round) {
    of_dispatch.push_back(seconds_of(dispatch));
    of_messages.push_back(seconds_of(messages));
  }
  of_dispatch = slowest(of_dispatch);
  of_messages = slowest(of_messages);
  for (int round = 0; round < rounds; ++round)
    ratios.push_back(of_messages[static_cast<std::size_t>(round)] /
                     of_dispatch[static_cast<std::size_t>(round)]);
  return harness::median(ratios);
}

}  // namespace suite

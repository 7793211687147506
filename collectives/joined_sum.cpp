#include "collectives/joined_sum.h"

#include <algorithm>
#include <optional>
#include <span>

namespace collectives {
namespace {

bool overlap(Slice a, Slice b) {
  return a.buffer == b.buffer && a.first < b.first + b.count && b.first < a.first + a.count;
}

bool covers(Slice a, Slice b) {
  return a.buffer == b.buffer && a.first <= b.first && b.first + b.count <= a.first + a.count;
}

bool reads(const Step& step, Slice slice) {
  const bool source = step.verb != Verb::receive && step.verb != Verb::post;
  return (source && overlap(step.source, slice)) ||
         (step.verb == Verb::reduce && overlap(step.target, slice));
}

// Only scratch: a peer or the caller reads the other buffers.
bool is_read(std::span<const Step> later, Slice slice) {
  if (slice.buffer != Buffer::scratch) return true;
  for (const Step& step : later) {
    if (reads(step, slice)) return true;
    if (step.verb != Verb::send && covers(step.target, slice)) return false;
  }
  return false;
}

// The next addition to `sum`: its summand, where the sum then is, and the number of its steps.
struct Addition {
  Summand summand;
  Slice target;
  std::size_t steps;
};
std::optional<Addition> next_addition(std::span<const Step> steps, Slice sum) {
  if (steps.empty()) return std::nullopt;
  const Step& step = steps[0];
  if (step.verb == Verb::receive_reduce && step.source == sum)
    return Addition{{step.peer, {}}, step.target, 1};
  if (step.verb == Verb::reduce && step.target == sum) return Addition{{-1, step.source}, sum, 1};
  const bool moves = step.verb == Verb::copy && steps.size() > 1 && steps[1].verb == Verb::reduce &&
                     steps[1].source == sum && steps[1].target == step.target;
  if (moves) return Addition{{-1, step.source}, step.target, 2};
  return std::nullopt;
}

}  // namespace

JoinedSum joined_sum(const Plan& plan, std::size_t first) {
  const std::span<const Step> steps(plan.steps);
  const Step& begin = steps[first];
  JoinedSum sum{1, {}, begin.target};
  if (begin.verb == Verb::receive_reduce) sum.summands.push_back({-1, begin.source});
  if (begin.verb != Verb::receive_reduce && begin.verb != Verb::receive) return {};
  sum.summands.push_back({begin.peer, {}});
  while (const auto next = next_addition(steps.subspan(first + sum.steps), sum.target)) {
    const bool again = std::ranges::any_of(sum.summands, [&](const Summand& earlier) {
      return earlier.peer >= 0 && earlier.peer == next->summand.peer;
    });
    const auto later = steps.subspan(first + sum.steps + next->steps);
    if (again || (next->target != sum.target && is_read(later, sum.target))) break;
    sum.summands.push_back(next->summand);
    sum.steps += next->steps;
    sum.target = next->target;
  }
  if (sum.summands.size() <= 2) return {};
  // The peer writes to a place that it was posted, and the post needs its receive.
  const bool posted = std::ranges::any_of(steps.first(first), [&](const Step& earlier) {
    return earlier.verb == Verb::post && begin.verb == Verb::receive &&
           earlier.peer == begin.peer && earlier.target == begin.target;
  });
  return posted ? JoinedSum{} : sum;
}

}  // namespace collectives

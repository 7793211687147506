#include "harness/measure/limit.h"

#include <algorithm>

#include "harness/unit/unit.h"

namespace harness {

Limit limit_of(const Cost& cost, const Rates& rates, int ranks) {
  const double set = cost.working_set_bytes > 0 ? cost.working_set_bytes : cost.memory_bytes;
  const auto key = [&](RateKey::Kind kind) {
    return RateKey{kind, ranks, cost.flops_dtype, cost.transport, set};
  };
  Limit limit;
  const auto raise = [&](double seconds, RateKey::Kind kind) {
    if (seconds > limit.seconds) limit = {seconds, key(kind)};
  };
  if (const double flops = rates.flops_per_second(cost.flops_dtype, ranks);
      cost.flops > 0 && flops > 0)
    raise(cost.flops / flops, RateKey::Kind::matrix);
  const double copy = cost.updates_in_place ? rates.update_bytes_per_second(set, ranks)
                                            : rates.memory_bytes_per_second(set, ranks);
  const double memory_s = copy > 0 ? cost.memory_bytes / copy : 0;
  const double link = rates.link_bytes_per_second(set, {ranks, cost.transport, false});
  double extra_s = 0;  // of a peer's memory, over shared_memory
  if (link > 0 && cost.transport != machine::Transport::shared_memory)
    raise(cost.wire_bytes / link, RateKey::Kind::link);
  else if (link > 0 && copy > 0)
    extra_s = cost.wire_bytes * std::max(0.0, 1 / link - 2 / copy);
  raise(memory_s + extra_s, extra_s > 0             ? RateKey::Kind::link
                            : cost.updates_in_place ? RateKey::Kind::update
                                                    : RateKey::Kind::memory);
  return limit;
}

bool is_stale(const Limit& limit, double seconds) { return seconds > 0 && limit.seconds > seconds; }

}  // namespace harness

#include "harness/measure/limit.h"

#include <algorithm>

namespace harness {

double limit_s(const Cost& cost, const Rates& rates, int ranks) {
  double limit = 0;
  if (const double flops = rates.flops_per_second(cost.flops_dtype, ranks);
      cost.flops > 0 && flops > 0)
    limit = cost.flops / flops;
  const double set = cost.working_set_bytes > 0 ? cost.working_set_bytes : cost.memory_bytes;
  const double copy = rates.memory_bytes_per_second(set, ranks);
  double memory_s = copy > 0 ? cost.memory_bytes / copy : 0;
  const double link = rates.link_bytes_per_second(set, {ranks, cost.transport, false});
  if (link > 0 && cost.transport == machine::Transport::mpi)
    limit = std::max(limit, cost.wire_bytes / link);
  else if (link > 0 && copy > 0)
    memory_s += cost.wire_bytes * std::max(0.0, 1 / link - 2 / copy);
  return std::max(limit, memory_s);
}

}  // namespace harness

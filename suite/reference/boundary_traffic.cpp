#include "suite/reference/boundary_traffic.h"

namespace suite {

machine::Traffic boundary_traffic(const pipeline::Placement& placement, int stage,
                                  int micro_batches, std::uint64_t bytes) {
  const int stages = placement.stages(), chunks = placement.chunks();
  if (stages == 1) return {};
  const int ends = (stage == 0) + (stage == stages - 1);
  const bool bidirectional = placement.copies() == 2;
  const bool v_shaped = !bidirectional && chunks == 2 && placement.part(stages - 1, 1) == stages;
  const int per_micro_batch = bidirectional ? 2 - ends
                              : v_shaped    ? 2 * (2 - ends)
                                            : 2 * chunks - ends;
  const auto messages =
      static_cast<std::uint64_t>(micro_batches) * static_cast<std::uint64_t>(per_micro_batch);
  return {messages * bytes, messages, messages * bytes, messages};
}

}  // namespace suite

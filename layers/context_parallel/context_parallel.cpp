#include "layers/context_parallel/context_parallel.h"

#include <cstdlib>

#include "machine/base/names.h"
#include "machine/base/reject.h"

namespace layers {

std::string_view name(CpCommType type) {
  constexpr std::string_view names[] = {"p2p", "all_gather", "a2a", "a2a+p2p"};
  return names[static_cast<std::size_t>(type)];
}

CpCommType cp_comm_type(std::string_view text) {
  using enum CpCommType;
  return machine::named("cp-comm-type", text, {p2p, all_gather, a2a, a2a_p2p});
}

SequenceOrder sequence_order(std::string_view text) {
  using enum SequenceOrder;
  return machine::named("cp-placement", text, {contiguous, striped, zigzag});
}

void ContextOptions::validate(int cp, int sequence, int heads, int kv_heads) const {
  if (cp == 1) return;
  if (sequence % cp != 0) {
    int nearest = 1;
    for (int divisor = 1; divisor <= sequence; ++divisor)
      if (sequence % divisor == 0 && std::abs(divisor - cp) < std::abs(nearest - cp))
        nearest = divisor;
    machine::reject(
        "context-parallel-size is {}; expected a divisor of seq-length {} (example: {})", cp,
        sequence, nearest);
  }
  if (comm_type == CpCommType::a2a && heads < cp)
    machine::reject(
        "cp-comm-type a2a requires a head for each of context-parallel-size {} ranks, but a "
        "tensor-parallel rank has {} heads; use cp-comm-type p2p",
        cp, heads);
  if (fpdt) {
    if (comm_type != CpCommType::a2a || order != SequenceOrder::striped)
      machine::reject(
          "ds-sequence-parallel-fpdt requires cp-comm-type a2a and cp-placement striped (got {} "
          "and "
          "{})",
          name(comm_type), name(order));
    if (fpdt_chunk_size % cp != 0)
      machine::reject(
          "ds-sequence-parallel-fpdt-chunk-size is {}; expected a multiple of "
          "context-parallel-size {} (example: {})",
          fpdt_chunk_size, cp, (fpdt_chunk_size / cp + 1) * cp);
  }
  if (!is_hybrid()) return;
  if (a2a_size < 2 || a2a_size >= cp || cp % a2a_size != 0)
    machine::reject(
        "cp-a2a-size is {}; cp-comm-type a2a+p2p expects a divisor of context-parallel-size {} "
        "between 1 and {}; without one use cp-comm-type p2p or a2a",
        a2a_size, cp, cp);
  if (heads % a2a_size != 0 || kv_heads % a2a_size != 0)
    machine::reject(
        "cp-a2a-size is {}; expected a divisor of the {} heads and {} query groups of a "
        "tensor-parallel rank; use cp-comm-type p2p",
        a2a_size, heads, kv_heads);
}

HybridGroups hybrid_groups(const machine::Group& cp, int a2a_size) {
  const int block = cp.index / a2a_size, place = cp.index % a2a_size;
  HybridGroups groups{{"cp_a2a", {}, place}, {"cp_p2p", {}, block}};
  for (int rank = 0; rank < cp.size(); ++rank) {
    const int member = cp.members[static_cast<std::size_t>(rank)];
    if (rank / a2a_size == block) groups.a2a.members.push_back(member);
    if (rank % a2a_size == place) groups.p2p.members.push_back(member);
  }
  return groups;
}

}  // namespace layers

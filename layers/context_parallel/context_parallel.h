#pragma once
// Context parallelism of a model (Megatron-LM's --context-parallel-size): every sequence is split
// over the ranks of a group, and only attention communicates.
//
//   p2p          ring attention (ring_attention.h)
//   all_gather   every rank gathers all keys and values (all_gather_attention.h)
//   a2a          Ulysses (ulysses_attention.h)
//                with FPDT one chunk of the sequence after another (fpdt_attention.h)
//   a2a+p2p      Ulysses inside, ring attention outside (hybrid_attention.h)

#include <cstdint>
#include <string_view>

#include "collectives/communicator/communicator.h"
#include "layers/context_parallel/splits/placement.h"

namespace layers {

class ChunkOffload;

enum class CpCommType : unsigned char { p2p, all_gather, a2a, a2a_p2p };
std::string_view name(CpCommType type);
// Return the value of a name. Throw std::invalid_argument that names the nearest.
CpCommType cp_comm_type(std::string_view text);
SequenceOrder sequence_order(std::string_view text);

struct ContextOptions {
  CpCommType comm_type = CpCommType::p2p;
  SequenceOrder order = SequenceOrder::zigzag;
  int a2a_size = 2;  // of a2a+p2p: ranks of an all-to-all
  // FPDT, with a2a and striped placement. DeepSpeed's arguments --ds-sequence-parallel-fpdt,
  // -fpdt-chunk-size (positions of a whole sequence) and -fpdt-offloading (chunks in host memory).
  bool fpdt = false;
  int fpdt_chunk_size = 65536;
  bool fpdt_offloading = false;
  bool operator==(const ContextOptions&) const = default;

  bool is_hybrid() const { return comm_type == CpCommType::a2a_p2p; }
  SequencePlacement placement(std::int64_t sequence, int cp) const {
    return {order, sequence, cp, is_hybrid() && cp > 1 ? a2a_size : 1};
  }
  // Throws std::invalid_argument that names the key, its value and a valid value. heads, kv_heads:
  // of a tensor-parallel rank. cp must divide the sequence. With a2a every rank requires a head.
  // With a2a+p2p a2a_size must divide cp and both heads, with more than one rank in both groups.
  // FPDT requires a2a, striped placement, and a chunk size that cp divides.
  void validate(int cp, int sequence, int heads, int kv_heads) const;
};

// The groups of a2a+p2p in a context-parallel group: blocks of a2a_size ranks, and the ranks with
// the same place in their blocks.
struct HybridGroups {
  machine::Group a2a, p2p;
};
HybridGroups hybrid_groups(const machine::Group& cp, int a2a_size);

// The split of a rank's sequences. Without a group, a rank has whole sequences.
struct ContextParallel {
  collectives::Communicator* group = nullptr;
  SequencePlacement placement{};  // of a whole sequence over the ranks of the group
  CpCommType comm_type = CpCommType::p2p;
  collectives::Communicator *a2a = nullptr, *p2p = nullptr;  // of a2a+p2p, which does not use group
  std::int64_t fpdt_chunk_size = 0;                          // 0: without FPDT
  ChunkOffload* chunks = nullptr;                            // of FPDT

  bool splits() const { return group != nullptr; }
  // Returns the number of rows of a sequence on this rank.
  std::int64_t rows(std::int64_t sequence) const {
    return splits() ? placement.rows(group->rank()) : sequence;
  }
  // Returns the runs of positions of this rank's rows.
  std::vector<Segment> segments(std::int64_t sequence) const {
    return splits() ? placement.segments(group->rank()) : std::vector<Segment>{{0, 0, sequence, 1}};
  }
};

}  // namespace layers

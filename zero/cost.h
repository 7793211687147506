#pragma once
// What a step costs a rank, from the papers' formulas: bytes sent for each (group, operation,
// dtype), and bytes held for each category. Pure functions of the plan: they need no memory and no
// ranks, so the oracles compare with them and `shardmark predict` counts runs that are too large to
// try.
//
// A bandwidth-optimal collective over n ranks sends, per rank, for a buffer of B bytes that n
// divides (the layout sees to that): all-reduce 2(n-1)/n B, reduce-scatter and all-gather (n-1)/n B
// (Patarasuk and Yuan 2009, doi:10.1016/j.jpdc.2008.09.002). With Psi padded elements, stage 0
// sends 2(d-1)/d Psi E_g, stage 1 (d-1)/d Psi (E_g + E_v) (Rajbhandari et al. 2020, section 7). For
// the smallest buffers a communicator may prefer an algorithm that sends more: as_run() asks it.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "machine/link/link.h"
#include "zero/gradient_plan.h"
#include "zero/optimizer.h"
#include "zero/partition.h"
#include "zero/step.h"

namespace zero {

// Elements that a rank sends in a collective over `ranks`, whose buffer (all_reduce) or whose share
// of it (reduce_scatter, all_gather) has `count` elements.
using SentElements =
    std::function<std::int64_t(machine::Operation, machine::Dtype, int ranks, std::int64_t count)>;
std::int64_t bandwidth_optimal(machine::Operation, machine::Dtype, int ranks, std::int64_t count);
// By the papers of the algorithms that a step with these options runs on this transport.
SentElements as_run(const StepOptions& options, machine::Transport transport);

struct TrafficRow {
  std::string group;  // "tp", "pp", "dp", "embedding"
  machine::TrafficLabel label;
  std::uint64_t bytes_sent = 0;
  std::string what;  // "gradients", "values", "norm", …; joined where rows share group and label
  bool operator==(const TrafficRow&) const = default;
};
// Of one step that updates (one that is not skipped for a norm that is not finite), by group and
// label. Rows without bytes are left out. Throws std::invalid_argument for an unknown stage.
std::vector<TrafficRow> expected_traffic(int stage, const GradientPlan& plan, const Layout& layout,
                                         const SentElements& sent = bandwidth_optimal);

// Bytes held between steps; a step takes none beside these. parameters, gradients: all padded
// elements. optimizer: the owned ones (optimizer.h). buffers: the decay mask and the norm's
// doubles; what a communicator stages for CUDA tensors is its own.
struct ExpectedMemory {
  std::size_t parameters = 0, gradients = 0, optimizer = 0, buffers = 0;
  bool operator==(const ExpectedMemory&) const = default;
};
ExpectedMemory expected_memory(int stage, const GradientPlan& plan, const Layout& layout,
                               const Rule& rule);

// The doubles in which the global norm is added up (step.cpp).
struct NormBuffers {
  std::int64_t squares = 0, partials = 0, gathered = 0;
};
NormBuffers norm_buffers(const GradientPlan& plan, const Layout& layout, bool sharded);

}  // namespace zero

#pragma once
// Counters of zero_step, and its bytes by the papers' formulas: those that pass memory, and the
// ratio of those that pass the wire in two ZeRO stages.

#include "machine/link/link.h"
#include "suite/reference/shared_counters.h"
#include "suite/reference/unit.h"
#include "suite/zero/zero_step_case.h"
#include "zero/states/layout.h"

namespace suite {

// of zero_step and zero_options
inline constexpr Counter zero_step_counters[] = {
    {"bytes_per_parameter", "B", Better::lower, Nature::exact,
     "peak of parameters, gradients and optimizer states of one rank"},
    {"host_bytes_per_parameter", "B", Better::neither, Nature::exact,
     "host memory of offload_optimizer and offload_param"},
    {"offload_bytes_per_step", "B", Better::neither, Nature::exact,
     "bytes that offloading moves in one step"},
    {"volume_ratio", "", Better::neither, Nature::exact,
     "bytes that a rank sends over dp or between hosts in a step, over those of stage 0"},
    nvme_GBps_counter,
    {"update_s", "s", Better::lower, Nature::measured, "update of states in a file (`zero_step`)"},
    {"file_pass_s", "s", Better::lower, Nature::measured,
     "time of a pass over the file that only reads and writes"},
    {"file_fraction", "", Better::higher, Nature::measured, "`file_pass_s` over `update_s`"}};

// Returns the cost without offload. states: bytes of the optimizer's states for each element.
inline Cost memory_cost(const ZeroStepCase& c, const zero::GradientPlan& plan,
                        const zero::Layout& layout, std::size_t states) {
  const double d = c.ranks, elements = static_cast<double>(layout.elements);
  const double gradient = static_cast<double>(size_of(plan.gradient_dtype)),
               value = static_cast<double>(size_of(plan.value_dtype));
  const bool sharded = c.stage > 0 && c.ranks > 1;
  const double owned = sharded ? elements / d : elements;
  Cost cost;
  // Backward reads the contributions, and reads and writes gradients.
  cost.memory_bytes = c.micro_batches * 3 * elements * gradient;
  // Collectives read each rank's share of all inputs and write its sum. Then they read and write
  // the sums (or values) of the other ranks.
  const double others = (d - 1) / d * elements;
  const double reductions = c.stage >= 2 ? c.micro_batches : 1,
               gathers = c.stage == 3 ? 2 * c.micro_batches : 1;
  if (c.hpz > 1) {  // half of the gathers; a secondary shard is filled once
    const double h = c.hpz;
    cost.memory_bytes += 2 * value * elements / h;
    cost.memory_bytes += c.micro_batches * 2 * value * ((h - 1) / h - (d - 1) / d) * elements;
  }
  // Coding reads the values and writes codes, which are sent and decoded.
  if (c.quantized_weights && c.ranks > 1) {
    const double code = 1 + 1.0 / 32;
    cost.memory_bytes +=
        (c.hpz > 1 ? gathers / 2 : gathers) *
        (elements / d * (value + code) + elements * (code + value) + 2 * others * (code - value));
  }
  if (c.quantized_gradients && c.ranks > 1) {  // without the second of two hops
    const double code = 0.5 + 1.0 / 32;
    cost.memory_bytes += reductions * (2 * elements * code + 2 * others * code);
  }
  if (c.ranks > 1)
    cost.memory_bytes += reductions * (elements + elements / d) * gradient +
                         2 * others * (sharded ? gathers * value : gradient);
  // The norm reads the owned gradients once. The update reads them again, reads and writes the
  // master and both moments, reads the mask, and writes the values if they are not the master.
  const double state = c.dtype == Dtype::float64 ? 8 : 4;
  const double update = gradient + 6 * state + 1 + (value == state ? 0 : value);
  const double cleared = c.stage >= 2 ? owned : elements;  // gradients, after the update
  cost.memory_bytes += owned * (gradient + update) + cleared * gradient;
  cost.working_set_bytes = elements * (gradient + value) + owned * static_cast<double>(states);
  cost.updates_in_place = true;
  return cost;
}

// Returns whether the bytes of a case have the paper's ratio: it has equal dtypes and one
// micro-batch, and each use gathers.
inline bool has_paper_ratio(const ZeroStepCase& c) {
  const auto own = [&](const std::string& word, bool by_default) {
    return word == "default" ? by_default : word == machine::name(c.dtype);
  };
  const bool sums = own(c.sums, c.dtype == Dtype::float32);
  return sums && own(c.wire, true) && c.dtype != Dtype::float64 && c.reduce_scatter &&
         c.max_reuse == 0 && c.ranks > 1 && c.micro_batches == 1;
}

inline double file_bytes(const zero::OffloadTraffic& moved) {
  return static_cast<double>(moved.nvme_read + moved.nvme_written);
}

// Returns the bytes of gradients and values, if the norm is the only number in double.
inline double sent_without_norm(const machine::Link& link) {
  double bytes = 0;
  for (const auto& [label, traffic] : link.traffic())
    if (label.dtype != Dtype::float64) bytes += static_cast<double>(traffic.bytes_sent);
  return bytes;
}

// Returns the bytes that a rank sends over dp in a step, over those in ZeRO stage 0: 1 in stages 1
// and 2 and 1.5 in stage 3 (Rajbhandari et al. 2020, arXiv:1910.02054, section 7). Stage 3 also
// gathers F frozen elements twice, P persistent ones once instead of twice, and S elements of the
// bucket of the shared row, which two parts use, twice more: of T trained elements, T reduced,
// P published and G = 2 (T + F - P) + 2 S gathered ones over 2 T. With hpZ it gathers everything
// but persistent elements once over dp, G = T + F - P (Wang et al. 2023, arXiv:2306.10209, table
// 1). With qwZ an element of G is 1 + 1/32 bytes instead of E, and with qgZ a reduced one c = 1/2 +
// 1/32. In two hops only the bytes to the other hosts count: (d / h - 1) / (d - 1) c.
inline double paper_ratio(const ZeroStepCase& c, const zero::Layout& layout, std::size_t shared_row,
                          int near_ranks) {
  if (c.stage < 3) return 1;
  double frozen = 0, persistent = 0;
  for (const zero::Bucket& bucket : layout.buckets)
    if (bucket.frozen != bucket.persistent)
      (bucket.frozen ? frozen : persistent) += static_cast<double>(bucket.range.size());
  const double trained = static_cast<double>(layout.elements),
               element = static_cast<double>(size_of(c.dtype));
  const zero::Bucket& first =
      layout.buckets[static_cast<std::size_t>(layout.bucket_of[shared_row])];
  const double shared = first.persistent ? 0 : static_cast<double>(first.range.size());
  const double once = trained + frozen - persistent;
  const double gathered = c.hpz > 1 ? once : 2 * once + 2 * shared;
  const double of_value = c.quantized_weights ? (1 + 1.0 / 32) / element : 1;
  const int hosts = c.ranks / near_ranks;
  const double sent = hosts > 1 ? (hosts - 1.0) / (c.ranks - 1) : 1;
  const double of_gradient = c.quantized_gradients ? sent * (0.5 + 1.0 / 32) / element : 1;
  return (of_gradient * trained + of_value * gathered + persistent) / (2 * trained);
}

}  // namespace suite

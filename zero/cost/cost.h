#pragma once
// The cost of a step for a rank, by the papers' formulas: its collectives, bytes sent for each
// (group, operation, dtype), and bytes held for each category. Pure functions of the plan that need
// no memory and no ranks. The oracles compare runs with them, and `shardmark plan` predicts runs
// that are too large to try.
//
// A bandwidth-optimal collective over n ranks sends, per rank, for a buffer of B bytes that n
// divides (the layout guarantees this): all-reduce 2(n-1)/n B, reduce-scatter and all-gather
// (n-1)/n B (Patarasuk and Yuan 2009, doi:10.1016/j.jpdc.2008.09.002). With Psi padded elements, d
// ranks, m micro-batches and u uses of every part in a micro-batch (2: forward and backward), a
// rank sends (Rajbhandari et al. 2020, arXiv:1910.02054, section 7; E_w: bytes on the wire)
//   stage 0   2(d-1)/d Psi E_w
//   stage 1    (d-1)/d Psi (E_w + E_v)
//   stage 2    (d-1)/d Psi (m E_w + E_v)          reduced in every micro-batch
//   stage 3    (d-1)/d Psi (m E_w + m u E_v)      persistent parameters: E_v once, not m u times
// LAMB also gathers two doubles a parameter over tp and, if it is sharded, over dp. Without shards
// it gathers two doubles over tp for each of the d shards. Muon gathers the directions of its
// sharded matrices over dp, (d-1)/d Psi_m E_w. For each matrix that tp cuts and that a rank
// orthogonalizes, it sums a square [n, n] over tp in each step of Newton-Schulz.
// Adafactor gathers like LAMB, and all-reduces a mean for each row and column over dp, if it is
// sharded, and over tp those that tp cuts. 1-bit Adam sends the bytes of stage 0 in its warm-up.
// With freeze_step 0 (rule_after) the bytes are those of a later step: for each segment the code of
// 1 bit an element and a scale for each share, twice, in place of 2(d-1)/d Psi E_w, and d doubles.
// 1-bit LAMB also gathers over tp as LAMB does and, later, a double a parameter; in the first such
// step the norms of the momenta, too.
// With zero_hpz_partition_size h, stage 3 sends (Wang et al. 2023, arXiv:2306.10209, section 3.2)
// only m of the m u gathers over dp, (d-1)/d Psi E_v each, and the others over h neighbours,
// (h-1)/h Psi E_v each. With zero_quantized_weights a gather over dp sends (1 + 1/32) bytes an
// element in place of E_v, and with zero_quantized_gradients the reduction sends c = 1/2 + 1/32 in
// place of E_w, in one hop over dp, (d-1)/d Psi c, or in two: (h-1)/h Psi c between the h near
// ranks and (d/h-1)/d Psi c to the other hosts. Without reduce_scatters, stages 1 and 2 send 2 E_w
// for each E_w. With gradient_compression, stages 0 and 1 send the bytes of
// collectives/compression/volume.h for each segment in place of E_w. With stage3_max_reuse_distance
// u is the number of uses that find their part not gathered: 1 if the distance is above Psi (after
// a first pass, which keeps nothing). With pipelines u counts the uses of a chunk's parts in a
// forward and a backward; every pass of a chunk sends its own buckets. A tied embedding's gradients
// are all-reduced over the two stages once per step, from stage 2 on only the rank's shard. All in
// one message for each bucket, collective and peer (and piece: collectives/cost.h). For the
// smallest buffers a communicator may select an algorithm that sends more. algorithm_of returns its
// name.

#include <optional>
#include <string_view>
#include <vector>

#include "collectives/communicator/calls.h"
#include "machine/link/link.h"
#include "zero/stages/step_options.h"
#include "zero/states/gradient_plan.h"
#include "zero/states/layout.h"

namespace zero {

// A model's uses of the plan's rows in the passes of one number (Pass::which): by default whole
// micro-batches. The cost of stages 0 and 1 does not depend on them.
struct Usage {
  int micro_batches = 1;  // number of these passes in a step
  // The arguments of before_use in a pass, in order.
  std::vector<std::vector<int>> uses = {};
  // The arguments of before_gradients and of gradients_ready in a pass, in order.
  std::vector<std::vector<int>> begun = {}, ready = {};
  // The rows of Pass::gradients; empty: all.
  std::optional<std::vector<int>> gradients = {};
  bool backward = false;  // Pass::backward
  bool reduces(const Bucket& bucket) const;
};
// The passes of a step.
struct Passes {
  std::vector<Usage> kinds;
  std::vector<std::size_t> order;  // of all passes of the step: their kinds
  Passes() : Passes(Usage{}) {}
  Passes(const Usage& usage)  // NOLINT: micro-batches are the passes of a step without pipelines
      : kinds{usage}, order(static_cast<std::size_t>(usage.micro_batches), 0) {}
  // Returns how often a step reduces the bucket.
  std::int64_t reductions(const Bucket& bucket) const;
};
// Returns the usage of all parts in forward, then all parts in backward, the last part first. The
// gradients of a part are ready after its use in backward.
Usage forward_and_backward(const std::vector<std::vector<int>>& parts, int micro_batches);

using collectives::CollectiveCalls;
// By segment: the elements that the fullest rank selects, with a compression whose volume depends
// on the values.
using Selected = std::vector<std::int64_t>;
// Returns the collectives of one step that updates (is not skipped for an infinite norm), over
// groups of more than one rank. dp_rank: with Muon the calls over tp depend on the shards. Throws
// std::invalid_argument for an unknown stage.
std::vector<CollectiveCalls> expected_calls(int stage, const GradientPlan& plan,
                                            const Layout& layout, const StepOptions& options = {},
                                            const Passes& passes = {},
                                            const Selected& selected = {}, int dp_rank = 0);

// Returns the name of the algorithm that the options ask for, or empty.
std::string_view asked_algorithm(const CollectiveCalls& calls, const StepOptions& options);
// Returns the name of the algorithm that runs such a collective, if the group's communicator has
// the default algorithms. The name may be "library".
std::string_view algorithm_of(const CollectiveCalls& calls, const StepOptions& options,
                              machine::Transport transport);

// Peak bytes held in a step after the first. With stages 0 and 1 the same bytes are also held
// between steps.
//   parameters  all values; stage 3: the shards, persistent buckets, and peak gathered values;
//               with zero_hpz_partition_size h also 1/h of the buckets that are not persistent;
//               with offload_param only the persistent buckets' shards
//   gradients   all gradients; stages 2 and 3: the shards, and the peak of the buckets' buffers;
//   and
//               a bucket on the wire, if communication_data_type differs
//   optimizer   states of the owned elements (optimizer.h)
//   buffers     the decay mask and the norm's doubles, and the staging of allgather_bucket_size;
//               the codes of zero_quantized_weights and _gradients, for the largest bucket, and
//               between two hops the sums of d/h shards in float;
//               with LAMB its sums and scratch (zero/stages/lamb.h) in place of the mask; with
//               Muon the mask of AdamW's elements, a bucket's directions, a matrix and its square
//               twice (zero/matrices/muon.h); with Adafactor LAMB's sums, the means, two matrices
//               (zero/matrices/adafactor.h); with 1-bit Adam no mask, and the norms of dp;
//               with 1-bit LAMB also its sums, quotients and a copy of the momentum
//   compression residuals, codes and sums of gradient_compression or of 1-bit Adam's momenta, in
//               host memory of their own, or over links between GPUs in buffers of the GPU;
//               selected: the largest of all steps
// With an offloaded optimizer the device holds only the states and buffers of the elements that
// stay on it. The members host_* count the host memory of offload_optimizer (streamed_optimizer.h)
// and offload_param (offload_param.h). If the values are offloaded and the states are not, the
// device has a buffer for the longest slot. The staging of a communicator for CUDA tensors and the
// scratch of its plans are not included.
struct ExpectedMemory {
  std::size_t parameters = 0, gradients = 0, optimizer = 0, buffers = 0;
  std::size_t host_optimizer = 0, host_buffers = 0, host_parameters = 0;
  std::size_t compression = 0;
  bool operator==(const ExpectedMemory&) const = default;
};
ExpectedMemory expected_memory(int stage, const GradientPlan& plan, const Layout& layout,
                               const Rule& rule, const StepOptions& options = {},
                               const Passes& passes = {}, const Selected& selected = {});

// Returns the bytes that offload_optimizer and offload_param move in a step that updates. Gradients
// and values have E_g and E_v bytes per element, and the host updates h of the owned elements. So h
// E_g bytes go down and h E_v bytes go up. With states in a file the host updates all owned
// elements. Values that are their own master then also go down, and every state moves once each way
// between memory and file (Ren et al. 2021, arXiv:2101.06840, section 4; Rajbhandari et al. 2021,
// arXiv:2104.07857). If n values are offloaded and used u times in each of m micro-batches, m u n
// E_v go up. A file reads the same number of bytes, and the update writes n E_v to it. No values go
// up after the update. If the states stay on the device, the update moves n E_v down. It first
// moves n E_v up if the values are their own master (float32). With states on the device or in a
// file, the update also reads such values if they are in a file. A file's slots are padded to
// io_alignment.
OffloadTraffic expected_offload_traffic(int stage, const GradientPlan& plan, const Layout& layout,
                                        const Rule& rule, const StepOptions& options,
                                        const Passes& passes = {});

// Bytes in files, with their padding.
struct InFiles {
  std::size_t values = 0, states = 0;
};
InFiles expected_in_files(int stage, const GradientPlan& plan, const Layout& layout,
                          const Rule& rule, const StepOptions& options);

}  // namespace zero

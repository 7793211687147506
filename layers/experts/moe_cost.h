#pragma once
// Bytes on the wire and in memory of one mixture-of-experts layer on one rank, in closed form from
// the rows that its routing sends to each expert. The oracles compare these with the counted
// values, exactly. Shares no code with the layer.
//
// Notation of rank r of P: T tokens, h hidden, N experts, k choices; S rows sent, R received, s of
// them its own; f = ffn/etp, i = inner/etp of an expert, F and I those of the shared expert; E
// bytes of a value, A of an accumulator; B = A in 16-bit dtypes, whose sums over choices need
// accumulators, else 0.
//
//   alltoall    forward sends (S + R - 2 s) h E in 2 (P - 1) messages, receives as much; backward
//               the same. Without padding also an all-gather of N counts.
//   allgather   forward gathers T k choices, T k weights and T h values of each rank, and
//               reduce-scatters P T h; backward gathers T h, and reduce-scatters P T k gradients of
//               weights and P T h values
//
// If several ranks split a micro-batch and the auxiliary loss depends on the load, forward also
// all-reduces N doubles over them (the group "tp_cp"), which are buffers. A shared expert that is
// split over tp is not counted here: it is a perceptron of the block (models/gpt_cost.h).
//
// kept after forward: logits T N A; rows R (h + i + f) E; outputs, index and weights S h E + 4 (S +
// 2 R) + S E of alltoall, R h E + 4 R + R E of allgather; of the shared expert T (I + F) E.
// kept after backward_input: R (h + f) E + T F E.

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "collectives/communicator/calls.h"
#include "layers/experts/expert_groups.h"
#include "layers/moe_config.h"

namespace layers {

struct MoeCase {
  MoeConfig config{};
  ExpertParallel degrees{};
  int rank = 0;  // of the ranks that exchange tokens
  machine::Dtype dtype = machine::Dtype::float32;
  std::int64_t tokens = 1;
  // [ranks, num_experts]: the rows that a rank has for an expert, padding included.
  std::vector<std::int64_t> rows{};
  int parts = 1;  // ranks that split a micro-batch
  // Returns whether the ranks sum their loads.
  bool sums_loads() const {
    return parts > 1 && config.load_balancing == LoadBalancing::aux_loss &&
           config.aux_loss_coeff != 0;
  }
};

// Rows that the rank sends and receives, S and R, and those of them that are its own.
struct MoeRows {
  std::int64_t sent = 0, received = 0, own = 0;
};
MoeRows moe_rows(const MoeCase& c);
// Returns `rows` of a routing that gives all experts the same number of rows, as nearly as
// possible.
std::vector<std::int64_t> even_rows(const MoeConfig& config, ExpertParallel degrees,
                                    std::int64_t tokens);

struct MoePass {
  std::map<machine::TrafficLabel, machine::Traffic> messages{};  // of alltoall
  std::vector<collectives::CollectiveCalls> calls{};             // over the groups "ep" and "tp_cp"
  std::size_t buffers = 0;  // peak, without scratch of collectives
};
struct MoeCost {
  MoePass forward, backward_input;
  std::size_t kept = 0, kept_for_weights = 0;
  std::int64_t rows = 0;  // R
};
MoeCost moe_cost(const MoeCase& c);

// Elements on a rank. replicated: also a shared expert that tp ranks split.
struct MoeParameters {
  std::int64_t of_experts = 0, replicated = 0;
};
MoeParameters moe_parameters(const MoeConfig& config, ExpertParallel degrees, int tp = 1);
// Floating-point operations of forward and backward for R rows and T tokens.
double moe_flops(const MoeConfig& config, ExpertParallel degrees, std::int64_t rows,
                 std::int64_t tokens);

}  // namespace layers

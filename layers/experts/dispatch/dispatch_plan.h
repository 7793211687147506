#pragma once
// The moves of tokens to experts and back, as data: pure functions of the routing.
//
// Rows of tokens are in the order of their receivers, then of the experts there, then of the
// tokens. Rows of an expert are in the order of their senders. With padding every expert gets its
// capacity from every rank, and rows without a token have index -1. With expert tensor parallelism
// all ranks that share an expert get its tokens.

#include <cstdint>
#include <span>
#include <vector>

#include "layers/experts/expert_groups.h"
#include "layers/experts/routing.h"

namespace layers {

// The rows of a sender (alltoall), or of a rank's experts (allgather).
struct TokenRows {
  std::vector<std::int32_t> token;  // of each row; of allgather, of all ranks' tokens
  std::vector<std::int32_t> slot;   // its choice in [tokens, topk]
};

struct AllToAllPlan {
  TokenRows sent;
  std::vector<std::int64_t> rows;                // of each of the rank's experts
  std::vector<std::int32_t> arranged, received;  // permutations: by expert <-> by sender
  std::vector<std::int64_t> to_experts;          // [ranks, ranks]: rows from a rank to another
};

// Returns this rank's rows for each expert, which the ranks exchange before a plan is made.
std::vector<std::int32_t> rows_of_experts(const MoeConfig& config, const Routing& routing);
// counts: [ranks, num_experts], rows_of_experts of all ranks.
AllToAllPlan all_to_all_plan(const MoeConfig& config, ExpertParallel degrees, int rank,
                             const Routing& routing, std::span<const std::int32_t> counts);

// Consecutive rows that a rank sends to another for one expert.
struct ExpertRun {
  std::int64_t packed = 0;  // first row in the sender's part for the receiver
  std::int64_t place = 0;   // first row among the receiver's rows, which are grouped by expert
  std::int64_t rows = 0;
};
// Returns the runs that are not empty, by expert. counts: as for all_to_all_plan.
std::vector<ExpertRun> expert_runs(const MoeConfig& config, ExpertParallel degrees, int from,
                                   int to, std::span<const std::int32_t> counts);

struct AllGatherPlan {
  TokenRows held;
  std::vector<std::int64_t> rows;  // of each of the rank's experts
};
// choices: [ranks, tokens, topk], those of all ranks.
AllGatherPlan all_gather_plan(const MoeConfig& config, ExpertParallel degrees, int rank,
                              std::span<const std::int32_t> choices);

}  // namespace layers

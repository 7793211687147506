#pragma once
// The only table of gradient reductions, computed from the parameters' placements. The step, the
// global norm and the volume oracle use it; no other code scales or reduces a gradient.
//
// The loss is normalised only here: backward produces gradients of the *sum* of the losses of all
// tokens, and every reduction is a sum. The optimizer divides once by `divisor`, the number of
// tokens that count in the whole step (all micro-batches, all data-parallel ranks). So uneven
// micro-batches, ranks without a token and gradient accumulation need no other factor.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/placement.h"
#include "machine/world/grid.h"

namespace zero {

using collectives::Parameter;
using machine::Category, machine::Dtype, machine::Tensor;

// The groups that gradients are summed over, in the order of the sums.
enum class Over : unsigned char {
  embedding,  // two opposite stages: a tied embedding has a gradient on both
  tp,         // each rank's gradient covers its part of the tokens (sequence parallelism)
  dp,         // replicas, and the ranks of a context, which have other tokens
  edp,        // of the ranks of tp and dp, those that hold the same parts of the same experts
};
inline constexpr Over all_overs[] = {Over::embedding, Over::tp, Over::dp, Over::edp};
std::string_view name(Over over);

// The part of a parameter that Muon orthogonalizes or Adafactor factors (zero/matrices). 8-bit
// AdamW has codes for the moments of each parameter with columns (zero/eight_bit), and no other
// member.
struct MatrixRow {
  enum class Cut : unsigned char { nothing, rows, columns };  // what tp shards
  std::int64_t columns = 0;                                   // of this rank's shard; 0: neither
  Cut cut = Cut::nothing;
  // Rows of a period that belong to different matrices: the queries, keys and values of a group of
  // heads. Empty: all rows are one matrix.
  std::vector<std::int64_t> parts = {};
  bool operator==(const MatrixRow&) const = default;
};

struct GradientRow {
  std::string parameter;
  std::int64_t elements = 0;  // of the local shard
  Dtype dtype{};              // of the gradient
  std::vector<Over> reduce;   // groups of one member are left out
  int replicas = 1;           // ranks of one model replica (tp x pp) that hold the same element
  bool weight_decay = true;
  bool frozen = false;  // not trained: no gradient, no state of the optimizer
  bool expert = false;  // held by the ranks of edp, which are not those of dp
  MatrixRow matrix = {};
  bool is_matrix() const { return matrix.columns > 0 && !frozen; }
  bool operator==(const GradientRow&) const = default;
};

// The degrees of experts (layers/experts/expert_groups.h): neighbours of a stage split an expert
// (etp; 0: as many as tp has), and ep times as many hold different parts.
struct Experts {
  int ep = 1, etp = 0;
};

struct GradientPlan {
  double divisor = 1;  // tokens of the whole step
  Dtype value_dtype{}, gradient_dtype{};
  int tp = 1, pp = 1, dp = 1;
  std::vector<GradientRow> rows;  // in the order of the parameters
  int ep = 1, etp = 0;            // of Experts
  int tp_rank = 0;

  // Ranks of a stage that hold different parts of experts.
  int expert_ranks() const { return ep * (etp > 0 ? etp : tp); }
  // Returns whether the ranks that hold the same part of an expert are not those of dp.
  bool experts_apart() const { return ep > 1 || (etp > 0 && etp != tp); }
  // Ranks of the largest group that adds up gradients and shards states.
  int most_holders() const { return experts_apart() ? std::max(dp, size(Over::edp)) : dp; }
  int size(Over over) const {  // members of that group
    switch (over) {
      case Over::embedding:
        return pp > 1 ? 2 : 1;
      case Over::tp:
        return tp;
      case Over::dp:
        return dp;
      case Over::edp:
        return tp * dp / expert_ranks();
    }
    return 1;
  }
};

// Returns the plan of a rank of the grid. Parameters need no memory yet. Throws
// std::invalid_argument for a divisor that is not positive, and for a parameter named twice. Also
// throws it for a tied parameter on the middle stage, which has no opposite stage, and for ep x etp
// that does not divide tp x dp. experts: the degrees of the parameters whose placement is of an
// expert (the grid's axis ep must be 1). dp of the plan is dp x cp of the grid
// (machine::Grid::replica_group). frozen: names of parameters that are not trained; an unknown name
// is an error. gradient_dtype: the dtype in which gradients are added up, that of the values, or
// float (the default; double for double).
GradientPlan gradient_plan(const std::vector<Parameter*>& parameters, Dtype value_dtype,
                           const machine::Grid& grid, double divisor,
                           const std::vector<std::string>& frozen = {},
                           std::optional<Dtype> gradient_dtype = {}, const Experts& experts = {});

}  // namespace zero

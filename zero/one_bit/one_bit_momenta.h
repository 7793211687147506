#pragma once
// The part that 1-bit Adam and 1-bit LAMB share: after freeze_step updates the variance is
// constant, and momenta are summed over dp instead of gradients. Rank i of the d ranks forms m_i =
// beta1 m / d + (1 - beta1) g_i from the last sum m and its own gradient g_i. The new m is the sum
// of their codes of one bit, each of which is sent to the rank that adds up a share, and then again
// as the code of that sum. Both keep their errors (collectives/compression/one_bit.h).
//
// The sum is one for each segment (layout.h), so ranks of tp and stages that hold the same
// parameters keep the same bits. A rank has one scale for each share of a segment; DeepSpeed has
// one for a whole tensor. At dp 1 no momentum is coded.
//
// A code has no zero. An element whose gradient was always zero in the warm-up has no variance, and
// the sign of its momentum is noise. DeepSpeed asks for a mask of such elements; here their
// variance becomes infinite when it is frozen, so they only decay. So does the padding.
//
// Gradients are clipped by the norm of a rank's own gradient (times d, as if all ranks had it),
// because no rank has the norm of their mean. If any rank's norm is not finite, all skip the step.
//
// The errors, codes and sums of codes are in the place of states/compression_place.h. Loaded states
// begin with errors of zero, as in DeepSpeed: a checkpoint has momentum and variance only.

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "machine/device/device.h"
#include "zero/matrices/matrix_context.h"
#include "zero/offload/owned_optimizer.h"
#include "zero/states/compression_place.h"
#include "zero/states/compression_watch.h"

namespace zero {

struct OneBitLimits {
  int stage = 0, dp = 1, ep = 1;
  Dtype value_dtype{};
  bool offloads = false, compresses_gradients = false;
};
// Throws std::invalid_argument for options that a 1-bit optimizer does not support.
void check_one_bit(const Rule& rule, const OneBitLimits& limits);

// Number of an update of Adam whose correction of the bias is 1.
inline constexpr std::int64_t never_corrected = std::numeric_limits<std::int64_t>::max();

// Returns the number of updates before momenta are summed; empty for other rules.
std::optional<std::int64_t> freeze_step(const Rule& rule);
// Returns the number of doubles for this rank's norm and those of all ranks of dp.
std::int64_t one_bit_norms(int dp);
// Returns the bytes of errors, codes and sums.
std::size_t one_bit_bytes_held(const Layout& layout, int dp);
// Returns the rule whose expected_calls (cost/cost.h) are those of the update after `updates`
// updates. Other rules are the same in every update.
Rule rule_after(const Rule& rule, std::int64_t updates);
// Returns whether every update of the rule sums momenta.
bool sums_momenta(const Rule& rule);

class OneBitOptimizer : public OwnedOptimizer {
 public:
  // owned: one range of all elements. watch: may be null.
  OneBitOptimizer(const Rule& rule, MatrixContext context, const OwnedRange& owned,
                  CompressionWatch* watch);

  // Returns whether the next update sums momenta, and so is given this rank's own gradients.
  bool is_frozen() const { return steps_ >= *freeze_step(rule_); }
  // Returns the largest of the ranks' norms, or one that is not finite. Collective over dp.
  double largest_norm(double own);

  void values_changed() override;
  void set_steps(std::int64_t steps) override;
  void visit(bool writes, const Visit& call) override;

  // Of errors and codes; null at dp 1 and on a GPU.
  const machine::Device* host() const { return place_ ? place_->host() : nullptr; }

 protected:
  // Returns the elements of a row of the plan in a tensor of all elements.
  Tensor of_row(const Tensor& tensor, std::size_t row) const;
  // Calls call(row) for all rows that are trained.
  template <class Call>
  void each_row(const Call& call) const {
    for (std::size_t row = 0; row < context_.plan.rows.size(); ++row)
      if (!context_.plan.rows[row].frozen) call(row);
  }
  // Replaces the last sum by this rank's momentum.
  void form_momentum(const Tensor& gradient, double gradient_scale, double beta1) const;
  void sum_momenta();
  // Makes variances of zero infinite.
  void freeze_variance();

  const MatrixContext context_;
  RangeStates states_;
  bool variance_is_frozen_ = false;

 private:
  CompressionWatch* watch_;
  Range range_;
  Tensor norm_, norms_;  // double: this rank's and all
  std::optional<CompressionPlace> place_;
  std::vector<std::unique_ptr<collectives::CompressedAllReduce>> sums_;  // by segment
};

}  // namespace zero

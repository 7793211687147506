#pragma once
// 1-bit Adam (Tang et al. 2021, arXiv:2102.02888, Algorithm 1), in ZeRO stage 0 as in DeepSpeed.
//
//   warm-up   freeze_step updates of Adam without correction of the bias, from summed gradients
//   then      the variance v is constant, and momenta are summed instead of gradients. Rank i of
//             the d ranks of dp forms m_i = beta1 m / d + (1 - beta1) g_i from the last sum m and
//             its own gradient g_i. The new m is the sum of their codes of one bit, each of which
//             is sent to the rank that adds up a share, and then again as the code of that sum.
//             Both keep their errors (collectives/compression/one_bit.h)
//   update    w -= learning_rate (m / (sqrt(v) + epsilon) + weight_decay w)
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
// The errors, codes and sums of codes are in host memory, which this owns. Loaded states begin with
// errors of zero, as in DeepSpeed: a checkpoint has momentum and variance only.

#include <memory>
#include <vector>

#include "machine/device/device.h"
#include "zero/matrices/matrix_context.h"
#include "zero/offload/owned_optimizer.h"
#include "zero/one_bit/compression_watch.h"

namespace zero {

struct OneBitLimits {
  int stage = 0, dp = 1, ep = 1;
  Dtype value_dtype{};
  bool offloads = false, compresses_gradients = false;
};
// Throws std::invalid_argument for options that 1-bit Adam does not support.
void check_one_bit(const Rule& rule, const OneBitLimits& limits);

// Elements of double: this rank's norm and those of all ranks of dp.
std::int64_t one_bit_norms(int dp);
// Returns the bytes of errors, codes and sums in host memory.
std::size_t one_bit_bytes_held(const Layout& layout, int dp);
// Returns the rule whose expected_calls (cost/cost.h) are those of the update after `updates`
// updates. Other rules are the same in every update.
Rule rule_after(const Rule& rule, std::int64_t updates);
// Returns whether every update of the rule sums momenta.
bool sums_momenta(const Rule& rule);

class OneBitAdamOptimizer final : public OwnedOptimizer {
 public:
  // owned: one range of all elements. watch: may be null.
  OneBitAdamOptimizer(const Rule& rule, MatrixContext context, const OwnedRange& owned,
                      CompressionWatch* watch);

  // Whether the next update sums momenta, and so is given this rank's own gradients.
  bool is_frozen() const { return steps_ >= adam().freeze_step; }
  // Returns the largest of the ranks' norms, or one that is not finite. Collective over dp.
  double largest_norm(double own);

  void update(const std::vector<Tensor>& gradients, double gradient_scale,
              const Updated& updated) override;
  void values_changed() override;
  void set_steps(std::int64_t steps) override;
  void visit(bool writes, const Visit& call) override;

  const machine::Device* host() const { return host_.get(); }  // null at dp 1

 private:
  const OneBitAdam& adam() const { return std::get<OneBitAdam>(rule_); }
  void form_momentum(const Tensor& gradient, double gradient_scale) const;
  void sum_momenta();
  void freeze_variance();
  void decay() const;

  const MatrixContext context_;
  CompressionWatch* watch_;
  Range range_;
  RangeStates states_;
  Tensor norm_, norms_;  // double: this rank's and all
  bool variance_is_frozen_ = false;
  std::unique_ptr<machine::Device> host_, pages_;  // pages: of staging; null on the host
  std::vector<std::unique_ptr<collectives::CompressedAllReduce>> sums_;  // by segment
};

}  // namespace zero

#pragma once
// Sends each token to the ranks of its experts by an all-to-all whose parts differ (Megatron-LM's
// --moe-token-dispatcher-type alltoall).
//
// Rank r sends S rows and receives R. Each of the four moves is one all_to_all_v of S or R rows of
// hidden values, without the rank's own. Before the first, ranks all-gather num_experts int32
// counts, unless rows are padded to the capacity, which all ranks know. The rows of a rank with
// several experts are arranged by expert; those of a single expert arrive in its order.
//
// Memory, kept from dispatch: index of S rows, two of R rows; S weights; the rows of the experts.
// Kept from combine: S rows of outputs. combine_backward returns R rows. Buffers: messages.
//
// Between ranks that reach each other's host memory, rows move from place to place (direct_rows.h).
// The buffers of packed messages are then reserved and not touched, so a plan's memory does not
// depend on the transport.

#include "layers/experts/dispatch/direct_rows.h"

namespace layers {

class AllToAllDispatcher final : public TokenDispatcher {
 public:
  AllToAllDispatcher(const Context& context, collectives::Communicator& group,
                     const MoeConfig& config, ExpertParallel degrees);

  Tensor dispatch(const Routing& routing, const Tensor& x, Saved& saved, Category kept) override;
  Tensor make_outputs(const Saved& saved, Category kept) const override;
  void combine(const Tensor& out, const Tensor& y, Saved& saved, Category kept) override;
  Tensor combine_backward(const Tensor& d_y, std::vector<double>& d_weights, Saved& saved,
                          Category kept) override;
  void dispatch_backward(const Tensor& d_rows, const Tensor& d_x, Saved& saved) override;

 private:
  bool arranges() const { return config_.num_experts > degrees_.ep; }
  std::vector<std::int32_t> counts_of_all(const Routing& routing);
  // Returns the rows of tokens, times their weights if there are any, grouped by expert. `sent` has
  // these rows in the order of saved.token; if rows move directly, it is memory for them.
  Tensor to_experts(const Tensor& from, const Tensor& weights, const Tensor& sent,
                    const Saved& saved, Category category);
  // Returns rows in the order of saved.token, and their sums by token, times weights if there are
  // any. Without weights rows that move directly are added up, and not returned.
  Tensor to_tokens(const Tensor& of_experts, const Tensor& weights, const Saved& saved,
                   Category category, const Tensor& sums);

  Context context_;
  collectives::Communicator& group_;
  MoeConfig config_;
  ExpertParallel degrees_;
  DirectRows direct_;
};

}  // namespace layers

#pragma once
// Gathers the tokens of all ranks on every rank; a reduce-scatter returns the sums of the weighted
// outputs (Megatron-LM's --moe-token-dispatcher-type allgather).
//
// Of P ranks with T tokens each, every one of the four moves sends (P - 1) T hidden values, however
// many experts a token has. dispatch also all-gathers T topk int32 choices and T topk weights (in
// the accumulator's type); combine_backward reduce-scatters their gradients.
//
// Memory, kept from dispatch: index and weights of R rows, and the rows of the experts. Kept from
// combine: R rows of outputs. combine_backward returns R rows. Buffers: P T rows.

#include "layers/experts/dispatch/token_dispatcher.h"

namespace layers {

class AllGatherDispatcher final : public TokenDispatcher {
 public:
  AllGatherDispatcher(const Context& context, collectives::Communicator& group,
                      const MoeConfig& config, ExpertParallel degrees);

  Tensor dispatch(const Routing& routing, const Tensor& x, Saved& saved, Category kept) override;
  Tensor make_outputs(const Saved& saved, Category kept) const override;
  void combine(const Tensor& out, const Tensor& y, Saved& saved, Category kept) override;
  Tensor combine_backward(const Tensor& d_y, std::vector<double>& d_weights, Saved& saved,
                          Category kept) override;
  void dispatch_backward(const Tensor& d_rows, const Tensor& d_x, Saved& saved) override;

 private:
  Tensor rows_of_all(const Tensor& own);  // [ranks * tokens, hidden], in buffers
  void scatter_sums(const Tensor& rows, const Tensor& own, const Saved& saved);

  Context context_;
  collectives::Communicator& group_;
  MoeConfig config_;
  ExpertParallel degrees_;
};

}  // namespace layers

#pragma once
// A mixture of experts over expert-parallel ranks, in place of a transformer block's perceptron:
//
//   y_t = sum over the kept choices k of token t of weight_tk expert_k(x_t) + shared(x_t)
//
// Every rank has its own tokens [tokens, hidden], the same number on all ranks. A call is
// collective over the ranks that exchange tokens, also for a rank that has no rows.
//
// Over tp the layer requires sequence parallelism, which gives each rank its own tokens. The router
// is on every rank; the shared expert is a tensor-parallel perceptron (mlp.h). etp may differ from
// tp: with etp 1 each rank of tp sends its own tokens to whole experts.
//
//   MoeLayer moe(context, groups, "moe", config);
//   moe.forward(x, y, saved, Category::activations);
//   moe.backward_input(d_y, d_x, saved, loss_factor, Category::buffers);
//   moe.backward_weights(saved);
//   moe.reduce_gradients(edp, all);    // once a step
//
// Gradients are those of the sum over all ranks of d_y · y and of loss_factor times the auxiliary
// losses of the rank's tokens. Communication: that of the dispatcher. moe_cost.h has the formulas.

#include <memory>
#include <string>

#include "layers/experts/dispatch/token_dispatcher.h"
#include "layers/experts/expert_groups.h"
#include "layers/experts/expert_mlps.h"
#include "layers/experts/router.h"
#include "layers/mlp.h"

namespace layers {

// The groups of a layer (expert_groups.h). experts: the ranks that exchange tokens, of which etp
// neighbours split an expert. parts: the ranks that split a micro-batch, whose tokens the auxiliary
// losses join (routing.h); null: only this one.
struct MoeCommunicators {
  collectives::Communicator& experts;
  int etp = 1;
  collectives::Communicator* parts = nullptr;
};

class MoeLayer {
 public:
  struct Saved {
    Router::Saved router;
    TokenDispatcher::Saved tokens;
    ExpertMlps::Saved experts;
    Mlp::Saved shared;
  };

  // context: device, tp, dtype, sequence_parallel; tp has one rank, or the tokens are split over
  // it. Throws std::invalid_argument like MoeConfig::validate.
  MoeLayer(const Context& context, const MoeCommunicators& groups, const std::string& name,
           const MoeConfig& config);

  // record: of the router's decisions (routing.h).
  void forward(const Tensor& x, const Tensor& y, Saved& saved, Category kept,
               RoutingRecord* record = nullptr);
  void backward_input(const Tensor& d_y, const Tensor& d_x, Saved& saved, double loss_factor,
                      Category kept);
  void backward_weights(Saved& saved);  // leaves saved empty

  // Adds up the experts' gradients over the ranks that hold them, and the others over all ranks.
  void reduce_gradients(collectives::Communicator& edp, collectives::Communicator& all);

  Parameters parameters() { return joined({replicated_parameters(), expert_parameters()}); }
  Parameters expert_parameters() { return experts_.parameters(); }
  Parameters replicated_parameters();  // router and shared expert
  const Context& own_context() const { return context_; }
  // Returns T of the losses, from this rank's tokens.
  std::int64_t loss_tokens(std::int64_t own) const { return own * parts_; }

 private:
  ExpertParallel degrees_;
  int parts_;
  MoeConfig config_;
  Context context_;
  Router router_;
  ExpertMlps experts_;
  std::unique_ptr<TokenDispatcher> dispatcher_;
  std::unique_ptr<Mlp> shared_;
};

}  // namespace layers

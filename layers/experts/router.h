#pragma once
// The router: logits [tokens, num_experts] = x Wᵀ in the accumulator's type, and the decisions of
// routing.h. The weight [num_experts, hidden] is on every rank; its gradient is that of the rank's
// own tokens, to be summed over all ranks.
//
// Keeps the logits for backward_input, which leaves their gradient, in the context's dtype, for
// backward_weights. The decisions are in host memory, which the device does not count.

#include <string>
#include <vector>

#include "layers/context.h"
#include "layers/experts/routing.h"
#include "layers/parameter.h"

namespace layers {

class Router {
 public:
  struct Saved {
    Tensor x, logits, d_logits;  // x is the caller's
    Routing routing;
  };

  // context.tp: one rank.
  Router(const Context& context, const std::string& name, const MoeConfig& config);

  void forward(const Tensor& x, Saved& saved, Category kept, RoutingRecord* record = nullptr);
  // Adds to d_x. loss_factor: of the auxiliary losses.
  void backward_input(const std::vector<double>& d_weights, double loss_factor, const Tensor& d_x,
                      Saved& saved, Category kept);
  void backward_weights(Saved& saved);  // leaves saved empty

  Parameters parameters() { return {&weight_}; }

 private:
  Context context_;
  MoeConfig config_;
  Parameter weight_;
};

}  // namespace layers

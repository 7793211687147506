#pragma once
// The router: logits [tokens, num_experts] = x Wᵀ in the accumulator's type, and the decisions of
// routing.h. The weight [num_experts, hidden] is on every rank; its gradient is that of the rank's
// own tokens, to be summed over all ranks: with sequence parallelism over tp, too.
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

  // x are this rank's own rows of a micro-batch (context.h). parts: the ranks that split it, over
  // which forward all-reduces the loads, num_experts doubles in buffers, if needs_load; null: none.
  Router(const Context& context, const std::string& name, const MoeConfig& config,
         collectives::Communicator* parts = nullptr);

  void forward(const Tensor& x, Saved& saved, Category kept, RoutingRecord* record = nullptr);
  // Adds to d_x. loss_factor: of the auxiliary losses.
  void backward_input(const std::vector<double>& d_weights, double loss_factor, const Tensor& d_x,
                      Saved& saved, Category kept);
  void backward_weights(Saved& saved);  // leaves saved empty

  Parameters parameters() { return {&weight_}; }

 private:
  std::vector<std::int64_t> sum_over_parts(const std::vector<std::int64_t>& load) const;

  Context context_;
  MoeConfig config_;
  collectives::Communicator* parts_;
  Parameter weight_;
};

}  // namespace layers

#pragma once
// Moves tokens to the ranks of their experts, and the experts' outputs back (Lepikhin et al. 2020,
// arXiv:2006.16668, section 3.2). Both dispatchers give the same values:
//
//   dispatch           rows of the rank's experts, grouped by expert, from x [tokens, hidden]
//   combine            y_t = sum over the kept choices k of token t of weight_tk out_tk
//   combine_backward   rows of the gradient of out, and d_weight_tk = d_y_t · out_tk
//   dispatch_backward  d_x_t = sum over the kept choices of the gradients of x's copies
//
// Weights are rounded to the context's dtype. Sums over choices are in the accumulator's type.
// With etp above 1, `out` and the gradient of its input are terms of a sum over etp, which the
// dispatcher adds. all_to_all_dispatcher.h and all_gather_dispatcher.h have bytes and memory.

#include <memory>
#include <vector>

#include "layers/context.h"
#include "layers/experts/dispatch/dispatch_plan.h"

namespace layers {

class TokenDispatcher {
 public:
  // Kept between the calls.
  struct Saved {
    std::int64_t tokens = 0;
    std::vector<std::int64_t> rows;    // of each of the rank's experts
    std::vector<std::int32_t> slot;    // of the rows of `token`, on the host
    std::vector<std::int32_t> counts;  // of alltoall: [ranks, num_experts]
    Tensor token, weights, out;        // of the rows that are weighted, and their outputs
    Tensor arranged, received;         // of alltoall: dispatch_plan.h
    std::shared_ptr<const collectives::TrafficMatrix> to_experts, to_tokens;  // of alltoall
  };

  virtual ~TokenDispatcher() = default;
  // The result is in memory of category `kept`.
  virtual Tensor dispatch(const Routing& routing, const Tensor& x, Saved& saved, Category kept) = 0;
  // Returns memory for the experts' outputs, in category `kept` if combine keeps them.
  virtual Tensor make_outputs(const Saved& saved, Category kept) const = 0;
  virtual void combine(const Tensor& out, const Tensor& y, Saved& saved, Category kept) = 0;
  // Returns d_out in memory of category `kept`, and sets d_weights [tokens, topk]. Frees saved.out.
  virtual Tensor combine_backward(const Tensor& d_y, std::vector<double>& d_weights, Saved& saved,
                                  Category kept) = 0;
  // Leaves saved empty.
  virtual void dispatch_backward(const Tensor& d_rows, const Tensor& d_x, Saved& saved) = 0;
};

// context: device, dtype. group: the ranks that exchange tokens (expert_groups.h).
std::unique_ptr<TokenDispatcher> make_token_dispatcher(const Context& context,
                                                       collectives::Communicator& group,
                                                       const MoeConfig& config,
                                                       ExpertParallel degrees);

}  // namespace layers

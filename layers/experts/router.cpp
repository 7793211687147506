#include "layers/experts/router.h"

#include "machine/device/gemm.h"

namespace layers {

Router::Router(const Context& context, const std::string& name, const MoeConfig& config,
               collectives::Communicator* parts)
    : context_(context),
      config_(config),
      parts_(parts),
      weight_(declare(context, name + ".weight", {config.num_experts, config.hidden},
                      context.between_regions())) {}

std::vector<std::int64_t> Router::sum_over_parts(const std::vector<std::int64_t>& load) const {
  const Tensor loads(context_.device, Dtype::float64, {config_.num_experts}, Category::buffers);
  from_doubles(loads, std::vector<double>(load.begin(), load.end()));
  parts_->all_reduce(loads, loads);
  context_.stream().synchronize();
  const std::vector<double> sums = to_doubles(loads);
  return {sums.begin(), sums.end()};
}

void Router::forward(const Tensor& x, Saved& saved, Category kept, RoutingRecord* record) {
  saved.x = x;
  saved.logits =
      Tensor(context_.device, context_.accumulator(), {x.rows(), config_.num_experts}, kept);
  gemm(context_.stream(), matrix(x), matrix(weight_.value).transposed(), matrix(saved.logits));
  context_.stream().synchronize();
  LossParts others;
  if (parts_) others = {parts_->size(), [this](const auto& load) { return sum_over_parts(load); }};
  saved.routing = route(config_, to_doubles(saved.logits), record, others);
}

void Router::backward_input(const std::vector<double>& d_weights, double loss_factor,
                            const Tensor& d_x, Saved& saved, Category kept) {
  saved.d_logits = context_.tensor(saved.logits.shape(), kept);
  from_doubles(saved.d_logits, route_backward(config_, to_doubles(saved.logits), saved.routing,
                                              d_weights, loss_factor));
  saved.logits = Tensor();
  gemm(context_.stream(), matrix(saved.d_logits), matrix(weight_.value), matrix(d_x), 1, 1);
}

void Router::backward_weights(Saved& saved) {
  if (weight_.gradient)  // not frozen
    gemm(context_.stream(), matrix(saved.d_logits).transposed(), matrix(saved.x),
         matrix(weight_.gradient), 1, 1);
  saved = Saved();
}

}  // namespace layers

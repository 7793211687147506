#include "layers/experts/moe_layer.h"

#include "machine/base/error.h"

namespace layers {
namespace {

ExpertParallel degrees_of(const MoeCommunicators& groups) {
  return {groups.experts.size() / groups.etp, groups.etp};
}

const MoeConfig& checked(const MoeConfig& config, ExpertParallel degrees) {
  config.validate(degrees.ep, degrees.etp);
  return config;
}

HeldExperts held(const MoeConfig& config, ExpertParallel degrees, int rank) {
  const int each = config.num_experts / degrees.ep;
  return {rank / degrees.etp * each, each, degrees.etp, rank % degrees.etp};
}

GptConfig shape_of_shared(const MoeConfig& config) {
  GptConfig shape;
  shape.hidden = static_cast<int>(config.hidden);
  shape.ffn_hidden_size = static_cast<int>(config.shared_expert_intermediate_size);
  shape.swiglu = config.swiglu;
  shape.disable_bias_linear = !config.bias;
  return shape;
}

}  // namespace

MoeLayer::MoeLayer(const Context& context, const MoeCommunicators& groups, const std::string& name,
                   const MoeConfig& config)
    : degrees_(degrees_of(groups)),
      parts_(groups.parts ? groups.parts->size() : 1),
      config_(checked(config, degrees_)),
      context_{context.device, context.tp, context.dtype, context.sequence_parallel},
      router_(context_, name + ".router", config, groups.parts),
      experts_({context.device, context.tp, context.dtype}, name + ".experts", config,
               held(config, degrees_, groups.experts.rank())),
      dispatcher_(make_token_dispatcher(context_, groups.experts, config, degrees_)) {
  SHARDMARK_CHECK(context_.tp.size() == 1 || context_.sequence_parallel, ==, true);
  if (config.shared_expert_intermediate_size > 0)
    shared_ = std::make_unique<Mlp>(context_, name + ".shared_experts", shape_of_shared(config));
}

void MoeLayer::forward(const Tensor& x, const Tensor& y, Saved& saved, Category kept,
                       RoutingRecord* record) {
  router_.forward(x, saved.router, kept, record);
  saved.experts.x = dispatcher_->dispatch(saved.router.routing, x, saved.tokens, kept);
  saved.experts.rows = saved.tokens.rows;
  {
    const Tensor out = dispatcher_->make_outputs(saved.tokens, kept);
    experts_.forward(out, saved.experts, kept);
    dispatcher_->combine(out, y, saved.tokens, kept);
  }
  if (!shared_) return;
  const Tensor of_shared = context_.tensor(y.shape(), Category::buffers);
  shared_->forward(x, of_shared, saved.shared, kept);
  context_.kernels().add(y, of_shared, y);
}

void MoeLayer::backward_input(const Tensor& d_y, const Tensor& d_x, Saved& saved,
                              double loss_factor, Category kept) {
  std::vector<double> d_weights;
  {
    const Tensor d_out = dispatcher_->combine_backward(d_y, d_weights, saved.tokens, kept);
    const Tensor d_rows = context_.tensor(d_out.shape(), Category::buffers);
    experts_.backward_input(d_out, d_rows, saved.experts, kept);
    dispatcher_->dispatch_backward(d_rows, d_x, saved.tokens);
  }
  router_.backward_input(d_weights, loss_factor, d_x, saved.router, kept);
  if (!shared_) return;
  const Tensor of_shared = context_.tensor(d_x.shape(), Category::buffers);
  shared_->backward_input(d_y, of_shared, saved.shared, kept);
  context_.kernels().add(d_x, of_shared, d_x);
}

void MoeLayer::backward_weights(Saved& saved) {
  experts_.backward_weights(saved.experts);
  router_.backward_weights(saved.router);
  if (shared_) shared_->backward_weights(saved.shared);
}

void MoeLayer::reduce_gradients(collectives::Communicator& edp, collectives::Communicator& all) {
  for (Parameter* parameter : expert_parameters()) edp.all_reduce(parameter->gradient);
  for (Parameter* parameter : replicated_parameters()) all.all_reduce(parameter->gradient);
}

Parameters MoeLayer::replicated_parameters() {
  return joined({router_.parameters(), shared_ ? shared_->parameters() : Parameters()});
}

}  // namespace layers

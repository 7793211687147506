#include "layers/experts/dispatch/all_gather_dispatcher.h"

#include "layers/experts/dispatch/row_operations.h"

namespace layers {

AllGatherDispatcher::AllGatherDispatcher(const Context& context, collectives::Communicator& group,
                                         const MoeConfig& config, ExpertParallel degrees)
    : context_(context), group_(group), config_(config), degrees_(degrees) {}

Tensor AllGatherDispatcher::rows_of_all(const Tensor& own) {
  Tensor all = context_.tensor({group_.size() * own.rows(), own.cols()}, Category::buffers);
  group_.all_gather(own, all);
  return all;
}

void AllGatherDispatcher::scatter_sums(const Tensor& rows, const Tensor& own, const Saved& saved) {
  const Tensor all = context_.tensor({group_.size() * own.rows(), own.cols()}, Category::buffers);
  sum_rows(context_, saved.token, rows, all);
  group_.reduce_scatter(all, own);
}

Tensor AllGatherDispatcher::dispatch(const Routing& routing, const Tensor& x, Saved& saved,
                                     Category kept) {
  const std::int64_t slots = group_.size() * static_cast<std::int64_t>(routing.choices.size());
  AllGatherPlan plan;
  {
    const Tensor choices = make_index(context_, routing.choices, Category::buffers),
                 all_choices(context_.device, Dtype::int32, {slots}, Category::buffers);
    group_.all_gather(choices, all_choices);
    plan = all_gather_plan(config_, degrees_, group_.rank(), index_on_host(context_, all_choices));
  }
  saved = Saved();
  saved.tokens = routing.tokens;
  saved.rows = plan.rows;
  saved.slot = plan.held.slot;
  {
    const Tensor weights = context_.row_values(slots / group_.size(), Category::buffers),
                 all_weights = context_.row_values(slots, Category::buffers);
    from_doubles(weights, routing.weights);
    group_.all_gather(weights, all_weights);
    context_.stream().synchronize();
    saved.weights =
        make_weights(context_, weights_of_rows(to_doubles(all_weights), saved.slot), kept);
  }
  saved.token = make_index(context_, plan.held.token, kept);
  Tensor rows = context_.tensor({saved.token.size(), config_.hidden}, kept);
  gather_rows(context_, saved.token, rows_of_all(x), rows);
  return rows;
}

Tensor AllGatherDispatcher::make_outputs(const Saved& saved, Category kept) const {
  return context_.tensor({saved.token.size(), config_.hidden}, kept);
}

void AllGatherDispatcher::combine(const Tensor& out, const Tensor& y, Saved& saved,
                                  Category /*kept*/) {
  saved.out = out;
  const Tensor weighted = context_.tensor(out.shape(), Category::buffers);
  scale_rows(context_, saved.weights, out, weighted);
  scatter_sums(weighted, y, saved);
}

Tensor AllGatherDispatcher::combine_backward(const Tensor& d_y, std::vector<double>& d_weights,
                                             Saved& saved, Category kept) {
  const Tensor d_rows = context_.tensor(saved.out.shape(), Category::buffers);
  gather_rows(context_, saved.token, rows_of_all(d_y), d_rows);
  const std::int64_t slots = saved.tokens * config_.topk;
  const std::vector<double> sums =
      sums_of_slots(dot_rows(context_, d_rows, saved.out), saved.slot, group_.size() * slots);
  {
    const Tensor all = context_.row_values(group_.size() * slots, Category::buffers),
                 own = context_.row_values(slots, Category::buffers);
    from_doubles(all, sums);
    group_.reduce_scatter(all, own);
    context_.stream().synchronize();
    d_weights = to_doubles(own);
  }
  saved.out = Tensor();
  Tensor d_out = context_.tensor(d_rows.shape(), kept);
  scale_rows(context_, saved.weights, d_rows, d_out);
  return d_out;
}

void AllGatherDispatcher::dispatch_backward(const Tensor& d_rows, const Tensor& d_x, Saved& saved) {
  scatter_sums(d_rows, d_x, saved);
  saved = Saved();
}

}  // namespace layers

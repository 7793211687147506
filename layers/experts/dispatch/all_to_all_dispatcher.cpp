#include "layers/experts/dispatch/all_to_all_dispatcher.h"

#include "layers/experts/dispatch/row_operations.h"

namespace layers {

using collectives::TrafficMatrix;

AllToAllDispatcher::AllToAllDispatcher(const Context& context, collectives::Communicator& group,
                                       const MoeConfig& config, ExpertParallel degrees)
    : context_(context),
      group_(group),
      config_(config),
      degrees_(degrees),
      direct_(context, group, config, degrees) {}

std::vector<std::int32_t> AllToAllDispatcher::counts_of_all(const Routing& routing) {
  const std::vector<std::int32_t> own = rows_of_experts(config_, routing);
  std::vector<std::int32_t> all;
  if (config_.pads()) {
    for (int rank = 0; rank < group_.size(); ++rank) all.insert(all.end(), own.begin(), own.end());
    return all;
  }
  const Tensor mine = make_index(context_, own, Category::buffers),
               gathered(context_.device, Dtype::int32,
                        {group_.size() * std::int64_t{config_.num_experts}}, Category::buffers);
  group_.all_gather(mine, gathered);
  return index_on_host(context_, gathered);
}

Tensor AllToAllDispatcher::to_experts(const Tensor& from, const Tensor& weights, const Tensor& sent,
                                      const Saved& saved, Category category) {
  Tensor rows = context_.tensor({saved.arranged.size(), config_.hidden}, category);
  const Tensor received = arranges() ? context_.tensor(rows.shape(), Category::buffers) : Tensor();
  if (direct_.available()) {
    direct_.to_experts(saved, from, weights, sent, rows);
    return rows;
  }
  group_.all_to_all_v(sent, received ? received : rows, saved.to_experts);
  if (received) gather_rows(context_, saved.arranged, received, rows);
  return rows;
}

Tensor AllToAllDispatcher::to_tokens(const Tensor& of_experts, const Tensor& weights,
                                     const Saved& saved, Category category, const Tensor& sums) {
  const bool direct = direct_.available();
  Tensor returned = context_.tensor({saved.token.size(), config_.hidden}, category);
  {
    const Tensor leaving =
        arranges() ? context_.tensor(of_experts.shape(), Category::buffers) : Tensor();
    if (direct)
      direct_.to_tokens(saved, of_experts, weights, leaving, weights ? returned : Tensor(), sums);
    else if (leaving)
      gather_rows(context_, saved.received, of_experts, leaving);
    if (!direct) group_.all_to_all_v(leaving ? leaving : of_experts, returned, saved.to_tokens);
  }
  const Tensor weighted = weights ? context_.tensor(returned.shape(), Category::buffers) : returned;
  if (direct) {
    if (context_.dtype != context_.accumulator())
      Tensor(context_.device, context_.accumulator(), sums.shape(), Category::buffers);
    return returned;
  }
  if (weights) scale_rows(context_, weights, returned, weighted);
  sum_rows(context_, saved.token, weighted, sums);
  return returned;
}

Tensor AllToAllDispatcher::dispatch(const Routing& routing, const Tensor& x, Saved& saved,
                                    Category kept) {
  std::vector<std::int32_t> counts = counts_of_all(routing);
  const AllToAllPlan plan = all_to_all_plan(config_, degrees_, group_.rank(), routing, counts);
  std::vector<std::int64_t> forth, back;
  const int ranks = group_.size();
  for (int from = 0; from < ranks; ++from)
    for (int to = 0; to < ranks; ++to) {
      const auto elements = [&](int sender, int receiver) {
        return plan.to_experts[static_cast<std::size_t>(sender * ranks + receiver)] *
               config_.hidden;
      };
      forth.push_back(elements(from, to));
      back.push_back(elements(to, from));
    }
  saved = Saved();
  saved.tokens = routing.tokens;
  saved.rows = plan.rows;
  saved.slot = plan.sent.slot;
  saved.to_experts = std::make_shared<const TrafficMatrix>(ranks, forth);
  saved.to_tokens = std::make_shared<const TrafficMatrix>(ranks, back);
  saved.token = make_index(context_, plan.sent.token, kept);
  saved.arranged = make_index(context_, plan.arranged, kept);
  saved.received = make_index(context_, plan.received, kept);
  saved.weights = make_weights(context_, weights_of_rows(routing.weights, saved.slot), kept);
  saved.counts = std::move(counts);
  const Tensor sent = context_.tensor({saved.token.size(), config_.hidden}, Category::buffers);
  if (!direct_.available()) gather_rows(context_, saved.token, x, sent);
  return to_experts(x, Tensor(), sent, saved, kept);
}

Tensor AllToAllDispatcher::make_outputs(const Saved& saved, Category /*kept*/) const {
  return context_.tensor({saved.arranged.size(), config_.hidden}, Category::buffers);
}

void AllToAllDispatcher::combine(const Tensor& out, const Tensor& y, Saved& saved, Category kept) {
  saved.out = to_tokens(out, saved.weights, saved, kept, y);
}

Tensor AllToAllDispatcher::combine_backward(const Tensor& d_y, std::vector<double>& d_weights,
                                            Saved& saved, Category kept) {
  const bool direct = direct_.available();
  const Tensor d_rows = context_.tensor(saved.out.shape(), Category::buffers),
               weighted = context_.tensor(saved.out.shape(), Category::buffers);
  if (!direct) gather_rows(context_, saved.token, d_y, d_rows);
  const std::vector<double> dots =
      direct ? direct_.dots_with_outputs(saved, d_y) : dot_rows(context_, d_rows, saved.out);
  d_weights = sums_of_slots(dots, saved.slot, saved.tokens * config_.topk);
  saved.out = Tensor();
  if (!direct) scale_rows(context_, saved.weights, d_rows, weighted);
  return to_experts(d_y, saved.weights, weighted, saved, kept);
}

void AllToAllDispatcher::dispatch_backward(const Tensor& d_rows, const Tensor& d_x, Saved& saved) {
  to_tokens(d_rows, Tensor(), saved, Category::buffers, d_x);
  saved = Saved();
}

}  // namespace layers

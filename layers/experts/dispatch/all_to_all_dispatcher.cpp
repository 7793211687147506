#include "layers/experts/dispatch/all_to_all_dispatcher.h"

#include "layers/experts/dispatch/row_operations.h"

namespace layers {

using collectives::TrafficMatrix;

AllToAllDispatcher::AllToAllDispatcher(const Context& context, collectives::Communicator& group,
                                       const MoeConfig& config, ExpertParallel degrees)
    : context_(context), group_(group), config_(config), degrees_(degrees) {}

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

Tensor AllToAllDispatcher::to_experts(const Tensor& sent, const Saved& saved, Category category) {
  Tensor rows = context_.tensor({saved.arranged.size(), config_.hidden}, category);
  if (!arranges()) {
    group_.all_to_all_v(sent, rows, saved.to_experts);
    return rows;
  }
  const Tensor received = context_.tensor(rows.shape(), Category::buffers);
  group_.all_to_all_v(sent, received, saved.to_experts);
  gather_rows(context_, saved.arranged, received, rows);
  return rows;
}

Tensor AllToAllDispatcher::to_tokens(const Tensor& of_experts, const Saved& saved,
                                     Category category) {
  Tensor returned = context_.tensor({saved.token.size(), config_.hidden}, category);
  if (!arranges()) {
    group_.all_to_all_v(of_experts, returned, saved.to_tokens);
    return returned;
  }
  const Tensor leaving = context_.tensor(of_experts.shape(), Category::buffers);
  gather_rows(context_, saved.received, of_experts, leaving);
  group_.all_to_all_v(leaving, returned, saved.to_tokens);
  return returned;
}

Tensor AllToAllDispatcher::dispatch(const Routing& routing, const Tensor& x, Saved& saved,
                                    Category kept) {
  const AllToAllPlan plan =
      all_to_all_plan(config_, degrees_, group_.rank(), routing, counts_of_all(routing));
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
  const Tensor sent = context_.tensor({saved.token.size(), config_.hidden}, Category::buffers);
  gather_rows(context_, saved.token, x, sent);
  return to_experts(sent, saved, kept);
}

Tensor AllToAllDispatcher::make_outputs(const Saved& saved, Category /*kept*/) const {
  return context_.tensor({saved.arranged.size(), config_.hidden}, Category::buffers);
}

void AllToAllDispatcher::combine(const Tensor& out, const Tensor& y, Saved& saved, Category kept) {
  saved.out = to_tokens(out, saved, kept);
  const Tensor weighted = context_.tensor(saved.out.shape(), Category::buffers);
  scale_rows(context_, saved.weights, saved.out, weighted);
  sum_rows(context_, saved.token, weighted, y);
}

Tensor AllToAllDispatcher::combine_backward(const Tensor& d_y, std::vector<double>& d_weights,
                                            Saved& saved, Category kept) {
  const Tensor d_rows = context_.tensor(saved.out.shape(), Category::buffers),
               weighted = context_.tensor(saved.out.shape(), Category::buffers);
  gather_rows(context_, saved.token, d_y, d_rows);
  d_weights =
      sums_of_slots(dot_rows(context_, d_rows, saved.out), saved.slot, saved.tokens * config_.topk);
  saved.out = Tensor();
  scale_rows(context_, saved.weights, d_rows, weighted);
  return to_experts(weighted, saved, kept);
}

void AllToAllDispatcher::dispatch_backward(const Tensor& d_rows, const Tensor& d_x, Saved& saved) {
  sum_rows(context_, saved.token, to_tokens(d_rows, saved, Category::buffers), d_x);
  saved = Saved();
}

}  // namespace layers

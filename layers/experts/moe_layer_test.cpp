// A mixture of experts gives the same values at every degree and with both dispatchers. suite's
// moe_layer compares it with a loop over tokens.

#include "layers/experts/moe_layer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <mutex>

#include "layers/experts/dispatch/row_operations.h"
#include "layers/testing/sharded_case.h"

namespace layers::testing {
namespace {

using collectives::Communicator;
using machine::Transport;
using Values = std::vector<double>;

constexpr int ranks = 4;
constexpr std::int64_t tokens = 6, hidden = 8;

MoeConfig small() {
  MoeConfig config;
  config.hidden = hidden;
  config.ffn_hidden_size = 12;
  config.num_experts = 4;
  config.shared_expert_intermediate_size = 4;
  config.aux_loss_coeff = 1;
  config.z_loss_coeff = 0.5;
  return config;
}

// Runs the layer on four ranks with the same tokens. Gradients of experts are keyed by their part.
// even: all logits are equal, so the first experts get all tokens.
Observed run(const MoeConfig& config, ExpertParallel degrees, bool even = false) {
  const Values x = random_values(ranks * tokens * hidden, 1, Dtype::float64),
               d_y = random_values(ranks * tokens * hidden, 2, Dtype::float64);
  std::mutex mutex;
  Observed seen;
  machine::run_ranks(ranks, [&](machine::World& world) {
    world.device().set_threads(1);
    const machine::Group everyone = machine::first_ranks("all", ranks, world.rank());
    const ExpertGroups groups = expert_groups(everyone, degrees);
    const auto connect = [&](const machine::Group& group) {
      return Communicator(world, group, Transport::shared_memory);
    };
    Communicator experts = connect(groups.experts), edp = connect(groups.edp),
                 all = connect(everyone), alone = connect({"alone", {world.rank()}, 0});
    MoeLayer layer({world.device(), alone, Dtype::float64}, {experts, degrees.etp}, "moe", config);
    const Initializer initializer = large_values(3);
    initializer.fill(layer.own_context(), layer.parameters());
    if (even) layer.own_context().kernels().fill(layer.replicated_parameters().front()->value, 0);
    for (Parameter* parameter : layer.parameters()) zero_gradient(layer.own_context(), *parameter);
    const auto own = [&](const Values& whole) {
      const Tensor rows = layer.own_context().tensor({tokens, hidden}, Category::buffers);
      const auto begin = whole.begin() + world.rank() * tokens * hidden;
      from_doubles(rows, Values(begin, begin + tokens * hidden));
      return rows;
    };
    const Tensor mine = own(x), d_mine = own(d_y), y = own(x), d_x = own(x);
    MoeLayer::Saved saved;
    layer.forward(mine, y, saved, Category::activations);
    layer.backward_input(d_mine, d_x, saved, 0.5, Category::buffers);
    layer.backward_weights(saved);
    layer.reduce_gradients(edp, all);
    const std::scoped_lock lock(mutex);
    seen[fmt::format("y of rank {}", world.rank())] = to_doubles(y);
    seen[fmt::format("d_x of rank {}", world.rank())] = to_doubles(d_x);
    for (const Parameter* parameter : layer.replicated_parameters())
      seen[parameter->name] = to_doubles(parameter->gradient);
    if (degrees.etp == 1)
      for (const Parameter* parameter : layer.expert_parameters())
        seen[parameter->name] = to_doubles(parameter->gradient);
  });
  return seen;
}

// The bound of one layer, twice, because both sides round.
const double bound = 2 * norm_bound(Dtype::float64, 1, 64);

Observed without_experts(Observed seen) {
  std::erase_if(seen, [](const auto& one) { return one.first.starts_with("moe.experts."); });
  return seen;
}

TEST(MoeLayer, ValuesDoNotDependOnDegreesAndDispatcher) {
  for (const double capacity : {0.0, 1.0}) {
    MoeConfig config = small();
    config.expert_capacity_factor = capacity;
    const Observed want = run(config, {});
    EXPECT_EQ(want.size(), 2 * ranks + 1 + 4 + 4 * 4);
    for (const TokenDispatcherType type :
         {TokenDispatcherType::alltoall, TokenDispatcherType::allgather})
      for (const ExpertParallel degrees : {ExpertParallel{2, 1}, {4, 1}, {2, 2}, {1, 4}}) {
        SCOPED_TRACE(fmt::format("{} ep {} etp {}", name(type), degrees.ep, degrees.etp));
        config.token_dispatcher_type = type;
        const Observed got = run(config, degrees);
        expect_within(got, degrees.etp == 1 ? want : without_experts(want), bound);
      }
  }
}

// Ranks whose experts have no tokens take part in all calls, and their gradients are zero.
TEST(MoeLayer, ExpertsMayHaveNoTokens) {
  for (const TokenDispatcherType type :
       {TokenDispatcherType::alltoall, TokenDispatcherType::allgather}) {
    MoeConfig config = small();
    config.token_dispatcher_type = type;
    const Observed got = run(config, {.ep = 4}, true);
    expect_within(got, run(config, {}, true), bound);
    for (const double value : got.at("moe.experts.3.fc1.weight")) EXPECT_EQ(value, 0);
    EXPECT_NE(got.at("moe.experts.1.fc1.weight"), got.at("moe.experts.3.fc1.weight"));
  }
}

TEST(RowOperations, WeighAndAddRows) {
  on_ranks(1, Dtype::float32, [](Rank& rank) {
    const Context& context = rank.context;
    const auto rows = [&](const Values& values) {
      const Tensor tensor = context.tensor({std::ssize(values) / 2, 2}, Category::buffers);
      from_doubles(tensor, values);
      return tensor;
    };
    const Tensor from = rows({1, 2, 3, 4, 5, 6}), to = rows(Values(8)), sums = rows(Values(6));
    const Tensor index = make_index(context, {2, -1, 0, 2}, Category::buffers);
    gather_rows(context, index, from, to);
    EXPECT_EQ(to_doubles(to), (Values{5, 6, 0, 0, 1, 2, 5, 6}));
    const Tensor scaled = rows(Values(8));
    scale_rows(context, make_weights(context, {2, 9, -1, 0.5}, Category::buffers), to, scaled);
    EXPECT_EQ(to_doubles(scaled), (Values{10, 12, 0, 0, -1, -2, 2.5, 3}));
    sum_rows(context, index, scaled, sums);
    EXPECT_EQ(to_doubles(sums), (Values{-1, -2, 0, 0, 12.5, 15}));
    EXPECT_EQ(dot_rows(context, to, scaled), (Values{122, 0, -5, 30.5}));
    EXPECT_EQ(sums_of_slots({1, 2, 4}, {1, -1, 1}, 2), (Values{0, 5}));
  });
}

}  // namespace
}  // namespace layers::testing

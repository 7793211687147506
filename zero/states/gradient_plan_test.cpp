#include "zero/states/gradient_plan.h"

#include <gtest/gtest.h>

namespace zero {
namespace {

using collectives::Parameter;
using collectives::Placement;
using collectives::Spread;
using machine::Dtype;

Parameter parameter(std::string name, machine::Shape shape, Placement placement,
                    bool decay = true) {
  Parameter p;
  p.name = std::move(name);
  p.global_shape = shape;
  p.placement = placement;
  p.weight_decay = decay;
  return p;
}

struct Parameters {
  Parameter embedding = parameter("embedding", {10, 6}, {Spread::sharded, 0, false, true});
  Parameter gain = parameter("gain", {6}, {Spread::replicated, 0, true, false}, false);
  Parameter fc = parameter("fc", {8, 6}, {Spread::sharded, 0});
  Parameter bias = parameter("bias", {6}, {Spread::replicated}, false);
  Parameter positions = parameter("positions", {5, 6}, {Spread::replicated, 0, true, true});
  std::vector<Parameter*> all() { return {&embedding, &gain, &fc, &bias, &positions}; }
};

TEST(GradientPlan, RowsAtTp2Pp2Dp2) {
  Parameters parameters;
  const GradientPlan plan = gradient_plan(parameters.all(), Dtype::bfloat16,
                                          machine::Grid({.tp = 2, .dp = 2, .pp = 2}, 0), 96);
  using enum Over;
  const std::vector<GradientRow> expected = {
      {"embedding", 30, Dtype::float32, {embedding, dp}, 2, true},  // first and last stage
      {"gain", 6, Dtype::float32, {tp, dp}, 2, false},              // both ranks of tp
      {"fc", 24, Dtype::float32, {dp}, 1, true},
      {"bias", 6, Dtype::float32, {dp}, 2, false},
      {"positions", 30, Dtype::float32, {embedding, tp, dp}, 4, true},
  };
  EXPECT_EQ(plan.rows, expected);
  EXPECT_EQ(plan.divisor, 96);
}

TEST(GradientPlan, GroupsOfOneAreLeftOut) {
  Parameters parameters;
  const GradientPlan plan =
      gradient_plan(parameters.all(), Dtype::float64, machine::Grid({}, 0), 1);
  for (const GradientRow& row : plan.rows) {
    EXPECT_TRUE(row.reduce.empty()) << row.parameter;
    EXPECT_EQ(row.replicas, 1) << row.parameter;
    EXPECT_EQ(row.dtype, Dtype::float64) << row.parameter;
  }
  EXPECT_EQ(plan.rows[0].elements, 60);
  // Tied, but tp shards it and pp is 1, so it has one holder.
  EXPECT_EQ(gradient_plan(parameters.all(), Dtype::float32, machine::Grid({.tp = 2}, 1), 1)
                .rows[0]
                .replicas,
            1);
  EXPECT_EQ(gradient_plan(parameters.all(), Dtype::float32, machine::Grid({.tp = 2}, 1), 1)
                .rows[4]
                .replicas,
            2);
}

TEST(GradientPlan, ReducesOverContextsAlsoWithoutDataParallelism) {
  Parameters parameters;
  const auto plan = [&](machine::Degrees degrees) {
    return gradient_plan({&parameters.fc}, Dtype::float32, machine::Grid(degrees, 0), 1);
  };
  EXPECT_EQ(plan({.cp = 2}).dp, 2);
  EXPECT_EQ(plan({.cp = 2}).rows[0].reduce, std::vector{Over::dp});
  EXPECT_EQ(plan({.cp = 2, .dp = 3}).dp, 6);
  EXPECT_EQ(plan({.cp = 2, .dp = 3}).rows[0].replicas, 1);
}

TEST(GradientPlan, RejectsUnsupportedPlans) {
  Parameters parameters;
  const auto plan = [&](const std::vector<Parameter*>& list, machine::Degrees degrees, int rank,
                        double divisor) {
    try {
      gradient_plan(list, Dtype::float32, machine::Grid(degrees, rank), divisor);
    } catch (const std::invalid_argument& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_NE(plan(parameters.all(), {}, 0, 0).find("divisor is 0"), std::string::npos);
  EXPECT_NE(plan({&parameters.fc, &parameters.fc}, {}, 0, 1).find("fc appears twice"),
            std::string::npos);
  EXPECT_NE(plan(parameters.all(), {.pp = 3}, 1, 1).find("embedding is tied"), std::string::npos);
  EXPECT_NE(plan({&parameters.fc}, {.ep = 2}, 0, 1).find("ep 2"), std::string::npos);
  EXPECT_NE(plan({&parameters.fc}, {.tp = 3}, 0, 1).find("fc"), std::string::npos);
  EXPECT_EQ(plan({&parameters.fc}, {.pp = 3}, 1, 1), "");
}

TEST(GradientPlan, ExpertsAreReducedOverTheirHolders) {
  Parameters parameters;
  parameters.fc.placement.etp = 1;
  const auto plan = [&](int dp, int ep) {
    return gradient_plan(parameters.all(), Dtype::float32, machine::Grid({.dp = dp}, 0), 1, {}, {},
                         {ep});
  };
  const GradientPlan of_two = plan(4, 2);
  EXPECT_EQ(of_two.size(Over::edp), 2);
  for (const GradientRow& row : of_two.rows) {
    const bool expert = row.parameter == "fc";
    EXPECT_EQ(row.expert, expert);
    EXPECT_EQ(row.reduce, std::vector{expert ? Over::edp : Over::dp}) << row.parameter;
  }
  EXPECT_TRUE(plan(4, 4).rows[2].reduce.empty());  // one holder
  EXPECT_FALSE(plan(4, 1).rows[2].expert);
  EXPECT_THROW(plan(4, 3), std::invalid_argument);
}

// Ranks of tp add up gradients of an expert that they all hold, and norms count it once.
TEST(GradientPlan, ExpertsWithAnotherDegreeThanTpHaveGroupsOverTp) {
  Parameters parameters;
  parameters.embedding.global_shape = {12, 6};
  const auto plan = [&](int tp, int dp, int ep, int etp, int rank = 0) {
    parameters.fc.placement.etp = parameters.bias.placement.etp = etp;
    return gradient_plan(parameters.all(), Dtype::float32,
                         machine::Grid({.tp = tp, .dp = dp}, rank), 1, {}, {}, {ep, etp});
  };
  const auto expect_expert = [](const GradientRow& row, std::int64_t elements, int replicas) {
    EXPECT_TRUE(row.expert) << row.parameter;
    EXPECT_EQ(row.elements, elements) << row.parameter;
    EXPECT_EQ(row.replicas, replicas) << row.parameter;
  };
  const GradientPlan whole = plan(2, 3, 1, 1, 3);
  EXPECT_EQ(whole.tp_rank, 1);
  EXPECT_EQ(whole.size(Over::edp), 6);
  EXPECT_EQ(whole.most_holders(), 6);
  EXPECT_EQ(whole.rows[2].reduce, std::vector{Over::edp});
  EXPECT_EQ(whole.rows[0].reduce, std::vector{Over::dp});
  expect_expert(whole.rows[2], 48, 1);
  expect_expert(whole.rows[3], 6, 1);  // a bias: every rank of edp has the whole sum
  const GradientPlan halves = plan(4, 1, 1, 2);
  EXPECT_EQ(halves.size(Over::edp), 2);
  expect_expert(halves.rows[2], 24, 1);
  expect_expert(halves.rows[3], 6, 2);
  const GradientPlan wider = plan(1, 4, 1, 2);
  EXPECT_EQ(wider.most_holders(), 4);
  expect_expert(wider.rows[2], 24, 1);
  EXPECT_FALSE(plan(2, 2, 1, 2).experts_apart());  // etp is tp
  EXPECT_EQ(plan(2, 2, 1, 2).most_holders(), 2);
  EXPECT_TRUE(plan(2, 1, 2, 1).rows[2].reduce.empty());  // one holder
  EXPECT_THROW(plan(2, 2, 3, 1), std::invalid_argument);
}

}  // namespace
}  // namespace zero

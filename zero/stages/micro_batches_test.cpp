#include "zero/stages/micro_batches.h"

#include <gtest/gtest.h>

#include "zero/testing/model_case.h"

namespace zero {
namespace {

using machine::Dtype;

// Calls test(batches, part of a bucket) with a bucket for each parameter of one rank.
template <class Test>
void with_batches(const std::vector<std::string>& frozen, const Test& test) {
  machine::run_ranks(1, [&](machine::World& world) {
    testing::RankModel model(world, {});
    const GradientPlan plan = gradient_plan(model.list(), Dtype::float32, model.grid, 48, frozen);
    FlatStates states(world.device(), plan, model.list(), {.reduce_bucket_size = 1});
    const StepContext context(2, states, plan, model.communicators(), {});
    MicroBatches batches(context);
    test(batches, [&](std::size_t bucket) {
      Part part;
      for (const int row : context.bucket(bucket).rows) part.push_back(&states.parameter(row));
      return part;
    });
  });
}

TEST(MicroBatches, TakesCompleteBucketsInTheOrderOfTheLayout) {
  with_batches({}, [](MicroBatches& batches, const auto& part) {
    ASSERT_GT(batches.trained(), 3u);
    for (const bool last : {false, true}) {
      batches.begin({.last = last});
      EXPECT_EQ(batches.is_last(), last);
      for (std::size_t bucket = batches.trained(); bucket-- > 1;) {
        batches.ready(part(bucket));
        EXPECT_EQ(batches.take_complete(), std::nullopt) << bucket;
      }
      batches.ready(part(0));
      EXPECT_EQ(batches.take_complete(), 0u);
      EXPECT_TRUE(batches.is_taken(0));
      EXPECT_FALSE(batches.is_taken(1));
      for (std::size_t bucket = 1; bucket < batches.trained(); ++bucket)
        EXPECT_EQ(batches.take_next(), bucket);
      EXPECT_EQ(batches.take_next(), std::nullopt);
      batches.end();
    }
  });
}

TEST(MicroBatches, RejectsCallsOutOfOrder) {
  with_batches({"stage0.bias"}, [](MicroBatches& batches, const auto& part) {
    EXPECT_THROW(batches.ready(part(0)), std::logic_error);
    batches.begin({.last = true});
    EXPECT_THROW(batches.begin({.last = true}), std::logic_error);
    batches.ready(part(0));
    EXPECT_THROW(batches.ready(part(0)), std::logic_error);
    const std::size_t frozen = batches.trained();
    batches.ready(part(frozen));  // has no gradient
    batches.ready(part(frozen));
    EXPECT_EQ(batches.take_complete(), 0u);
    batches.end();
    EXPECT_THROW(batches.begin({.last = true}),
                 std::logic_error);  // buckets of the last batch are taken
  });
}

// The gradients of the first step are still in memory. No layer has written over them.
TEST(MicroBatches, GradientsOfALayerThatDoesNotRunAreZero) {
  for (const int stage : {0, 1})
    machine::run_ranks(2, [&](machine::World& world) {
      testing::RankModel model(world, {.dp = 2});
      for (Parameter& parameter : model.parameters) parameter.layer_writes_first_sum = true;
      const GradientPlan plan = gradient_plan(model.list(), machine::Dtype::float32, model.grid, 1);
      FlatStates states(world.device(), plan, model.list());
      model.set_values();
      const auto step = make_step(stage, states, plan, model.communicators(), {});
      for (const bool runs : {true, false}) {
        step->begin_micro_batch(true);
        step->before_use(model.list());
        step->before_gradients(model.list());
        if (runs) model.set_gradients(1);
        step->after_use(model.list());
        step->gradients_ready(model.list());
        step->end_micro_batch();
        step->reduce();
        EXPECT_EQ(step->update().gradient_norm > 0, runs);
      }
    });
}

}  // namespace
}  // namespace zero

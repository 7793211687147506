#include "zero/stages/compressed_reduction.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "collectives/communicator/calls.h"
#include "zero/cost/cost.h"
#include "zero/stages/step.h"
#include "zero/testing/model_case.h"

namespace zero {
namespace {

using machine::Dtype;
using testing::RankModel;

constexpr int steps = 3;

std::string values_of(const RankModel& model) {
  std::string all;
  for (const Parameter& parameter : model.parameters)
    all += std::to_string(hash(parameter.value)) + " ";
  return all;
}

// Replicated parameters have the same bits on all ranks of tp and dp, and a tied table on both
// stages, although these ranks' buckets hold different parameters.
TEST(CompressedReduction, KeepsReplicasEqualInBothStages) {
  for (const std::string& algorithm : gradient_compressions())
    machine::run_ranks(8, [&](machine::World& world) {
      SCOPED_TRACE(algorithm);
      const machine::Degrees degrees{.tp = 2, .dp = 2, .pp = 2};
      std::string values[2];
      for (const int stage : {0, 1}) {
        RankModel model(world, degrees);
        const GradientPlan plan = gradient_plan(model.list(), Dtype::float32, model.grid, 48);
        FlatStates states(world.device(), plan, model.list());
        model.set_values();
        const auto step = make_step(stage, states, plan, model.communicators(),
                                    {.gradient_compression = {algorithm, 0.05, 1.5}});
        for (int at = 0; at < steps; ++at) {
          model.set_gradients(at);
          step->step();
        }
        values[stage] = values_of(model);
        for (const Parameter& parameter : model.parameters) {
          std::string place = parameter.name;
          if (parameter.placement.tp == collectives::Spread::sharded)
            place += " " + std::to_string(model.grid.coordinate(machine::Axis::tp));
          const auto places = world.all_gather(world.group(), place);
          const auto hashes =
              world.all_gather(world.group(), std::to_string(hash(parameter.value)));
          for (std::size_t rank = 0; rank < places.size(); ++rank)
            if (places[rank] == place) {
              EXPECT_EQ(hashes[rank], std::to_string(hash(parameter.value)))
                  << place << " on rank " << rank;
            }
        }
      }
      EXPECT_EQ(values[0], values[1]);
    });
}

TEST(CompressedReduction, SendsAndHoldsItsFormulasBytes) {
  for (const std::string& algorithm : gradient_compressions())
    for (const int stage : {0, 1})
      machine::run_ranks(3, [&](machine::World& world) {
        SCOPED_TRACE(algorithm);
        RankModel model(world, {.dp = 3});
        const GradientPlan plan = gradient_plan(model.list(), Dtype::float32, model.grid, 48);
        FlatStates states(world.device(), plan, model.list(), {.reduce_bucket_size = 100});
        const StepOptions options{.gradient_compression = {algorithm, 0.05, 1.5}};
        const auto step = make_step(stage, states, plan, model.communicators(), options);
        for (int at = 0; at < steps; ++at) {
          model.set_gradients(at);
          model.dp->link().reset_traffic();
          step->step();
        }
        ASSERT_NE(step->compressed(), nullptr);
        Selected last, largest;
        for (const auto& segment : step->compressed()->selected()) {
          last.push_back(segment.last);
          largest.push_back(segment.largest);
        }
        collectives::CallsCost cost;
        for (const auto& calls : expected_calls(stage, plan, states.layout(), options, {}, last))
          cost.add(calls, *model.dp, asked_algorithm(calls, options));
        std::map<machine::TrafficLabel, machine::Traffic> sent;
        for (const auto& [label, traffic] : model.dp->link().traffic())
          if (traffic != machine::Traffic{}) sent[label] = traffic;
        EXPECT_EQ(sent, cost.traffic("dp"));
        EXPECT_EQ(step->compressed()->host()->ledger().peak(),
                  expected_memory(stage, plan, states.layout(), AdamW{}, options, {}, largest)
                      .compression);
      });
}

// Over a link between hosts, residuals and codes lie in host memory, beside pinned pages that hold
// copies of the gradients and are not counted with them. The sums are those of ranks on the host.
// Only the update runs on the GPU, where it may round otherwise: five roundoffs for each step.
TEST(CompressedReduction, SumsGradientsOfGpusInHostMemory) {
  if (machine::cuda::count() < 2) GTEST_SKIP() << "fewer than 2 CUDA devices";
  for (const std::string& algorithm : gradient_compressions()) {
    SCOPED_TRACE(algorithm);
    std::vector<double> values[2];
    for (const bool on_gpu : {false, true})
      machine::run_ranks(2, [&](machine::World& world) {
        if (on_gpu) world.use_device(machine::cuda::make_device(world.rank()));
        world.barrier(world.group());
        {
          RankModel model(world, {.dp = 2});
          const GradientPlan plan = gradient_plan(model.list(), Dtype::float32, model.grid, 48);
          FlatStates states(world.device(), plan, model.list());
          model.set_values();
          const StepOptions options{.gradient_compression = {algorithm, 0.05, 1.5}};
          const auto step = make_step(0, states, plan, model.communicators(), options);
          for (int at = 0; at < steps; ++at) {
            model.set_gradients(at);
            step->step();
          }
          Selected largest;
          for (const auto& segment : step->compressed()->selected())
            largest.push_back(segment.largest);
          EXPECT_EQ(
              step->compressed()->host()->ledger().peak(),
              expected_memory(0, plan, states.layout(), AdamW{}, options, {}, largest).compression);
          if (world.rank() == 0)
            for (const Parameter& parameter : model.parameters)
              std::ranges::copy(to_doubles(parameter.value), std::back_inserter(values[on_gpu]));
        }
        world.barrier(world.group());
      });
    ASSERT_EQ(values[0].size(), values[1].size());
    for (std::size_t i = 0; i < values[0].size(); ++i)
      EXPECT_NEAR(values[1][i], values[0][i], 15 * 0x1p-24 * std::max(1.0, std::abs(values[0][i])))
          << i;
  }
}

TEST(CompressedReduction, RejectsWhatItDoesNotSupport) {
  const auto why = [](int stage, StepOptions options, Dtype dtype = Dtype::float32) {
    if (options.gradient_compression.algorithm.empty())
      options.gradient_compression.algorithm = "top_k";
    try {
      check_compression(stage, options, 2, dtype);
    } catch (const std::invalid_argument& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(why(1, {}), "");
  EXPECT_NE(why(2, {}).find("requires ZeRO stage 0 or 1 (got 2)"), std::string::npos);
  EXPECT_NE(why(0, {}, Dtype::bfloat16).find("gradients of float (got bfloat16)"),
            std::string::npos);
  EXPECT_NE(why(0, {.communication_data_type = Dtype::bfloat16}).find("(got bfloat16)"),
            std::string::npos);
  EXPECT_NE(why(0, {.prescale_gradients = true}).find("prescale_gradients false"),
            std::string::npos);
  EXPECT_NE(why(0, {.overlap_comm = true}).find("overlap_comm false"), std::string::npos);
  EXPECT_NE(why(0, {.gradient_compression = {"top_kk"}}).find("did you mean 'top_k'"),
            std::string::npos);
  EXPECT_NE(why(0, {.gradient_compression = {"threshold"}}).find("unknown"), std::string::npos);
  EXPECT_NE(why(0, {.gradient_compression = {"top_k", 0}}).find("compression-density is 0"),
            std::string::npos);
  EXPECT_NE(why(0, {.gradient_compression = {"deviation", 1, 0}}).find("deviations is 0"),
            std::string::npos);
}

}  // namespace
}  // namespace zero

#include "suite/plan/model_shape.h"

#include <gtest/gtest.h>

#include <array>

#include "layers/models/gpt_cost.h"
#include "suite/configuration/models.h"
#include "suite/plan/memory_plan.h"

namespace suite::configuration {
namespace {

// Those of experts are divided by ep and etp, and sharded over the ranks that hold the same part.
TEST(ModelShape, CountsExpertsOfARankExactly) {
  for (const auto& [tp, dp, ep, etp] :
       {std::array{2, 4, 2, 2}, {2, 4, 2, 1}, {4, 1, 1, 2}, {1, 4, 1, 4}}) {
    TrainingConfig t;
    t.model = named_model("moe_tiny");
    t.model.moe.shared_expert_intermediate_size = 48;
    t.model.vocabulary = padded_vocabulary(t.model, tp);
    t.degrees = {.tp = tp, .dp = dp};
    t.precision.dtype = machine::Dtype::bfloat16;
    t.expert_parallel = ep;
    t.expert_tensor_parallel = etp;
    t.batch = {1, 4, 4 / dp};
    t.activations.sequence_parallel = tp > 1;
    const double own = static_cast<double>(
        layers::stage_parameters_count(t.model, {.tp = tp, .stage = {}, .experts = {{ep, etp}}}));
    EXPECT_EQ(parameters_of_rank(t), own);
    // 4 / ep experts in both layers: 2 * 32 * 128 weights and 128 of 160 biases are split.
    const int of_expert = (2 * 32 * 128 + 128) / etp + 32, replicas = tp * dp / ep / etp;
    const double experts = 2.0 * 4 / ep * of_expert;
    EXPECT_EQ(expert_parameters_of_rank(t), experts);
    EXPECT_DOUBLE_EQ(held(t, {Counting::paper, 1}, {}).gpu.optimizer,
                     12 * ((own - experts) / dp + experts / replicas));
  }
}

}  // namespace
}  // namespace suite::configuration

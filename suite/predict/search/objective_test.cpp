#include "suite/predict/search/objective.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "suite/configuration/models.h"

namespace suite::predict {
namespace {

TrainingConfig llama() {
  TrainingConfig config;
  config.model = named_model("llama2_7b");
  config.precision.dtype = machine::Dtype::bfloat16;
  config.batch.global_batch_size = 16;
  config.activations.use_flash_attn = true;
  return config;
}

class Reach : public ::testing::Test {
 protected:
  const Cluster cluster = read_cluster("dgx_a100");
  const Software& software = find_software("megatron_core");
  // Returns whether some candidate of the grid fits.
  bool fits(const TrainingConfig& config, int gpus) const {
    return !Candidates(grid(config, cluster, gpus), cluster, software, 80e9).fitting().empty();
  }
};

TEST_F(Reach, TheNextLongerSequenceDoesNotFit) {
  TrainingConfig base = llama();
  base.batch.global_batch_size = 4;
  const Reached reached = reach(Objective::sequence, base, cluster, 4, software, 80e9);
  ASSERT_FALSE(reached.found.best.empty());
  EXPECT_GT(reached.config.model.sequence, 4096);
  EXPECT_TRUE(fits(reached.config, 4));
  TrainingConfig longer = reached.config;
  longer.model.sequence *= 2;
  EXPECT_FALSE(fits(longer, 4));
  EXPECT_NE(text(Objective::sequence, reached).find("longest sequence"), std::string::npos);
}

TEST_F(Reach, EightMoreLayersDoNotFit) {
  const Reached reached = reach(Objective::model, llama(), cluster, 2, software, 80e9);
  ASSERT_FALSE(reached.found.best.empty());
  EXPECT_EQ(reached.config.model.layers % 8, 0);
  TrainingConfig larger = reached.config;
  larger.model.layers += 8;
  EXPECT_FALSE(fits(larger, 2));
  // With twice the GPUs more fit.
  EXPECT_GT(reach(Objective::model, llama(), cluster, 4, software, 80e9).config.model.layers,
            reached.config.model.layers);
}

TEST_F(Reach, HalfOfTheFewestGpusIsNotEnough) {
  TrainingConfig base = llama();
  base.model = named_model("llama2_13b");
  const Reached reached = reach(Objective::gpus, base, cluster, 1, software, 80e9);
  ASSERT_FALSE(reached.found.best.empty());
  EXPECT_GE(reached.gpus, 2);
  EXPECT_TRUE(fits(base, reached.gpus));
  EXPECT_FALSE(fits(base, reached.gpus / 2));
}

TEST_F(Reach, NothingFitsIntoNothing) {
  EXPECT_TRUE(reach(Objective::sequence, llama(), cluster, 2, software, 1e6).found.best.empty());
  EXPECT_THROW(parse_objective("nonsense"), std::invalid_argument);
}

}  // namespace
}  // namespace suite::predict

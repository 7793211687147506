#include "suite/trainer/trainer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "suite/configuration/models.h"

namespace suite {
namespace {

using Members = std::vector<int>;

// A trainer on some ranks of the world connects these ranks, not the first ones. On several hosts,
// the reference of a rank cannot reach rank 0.
TEST(TrainerGroups, HaveTheirRanksInTheWorld) {
  machine::run_ranks(3, [](machine::World& world) {
    TrainingConfig config;
    set_model(config, "tiny");
    config.batch.global_batch_size = 2;
    const Corpus corpus = Corpus::generated(config.seed, config.model.tokens);
    const int rank = world.rank();
    const auto members = [](const Trainer& trainer, const char* name) {
      return trainer.communicator(name)->group().members;
    };
    const Trainer alone(world, {"alone", {rank}, 0}, world.device(), config, corpus);
    for (const char* name : {"tp", "pp", "dp"}) ASSERT_EQ(members(alone, name), Members{rank});

    if (rank == 0) return;
    for (const bool tp : {true, false}) {
      (tp ? config.degrees.tp : config.degrees.pp) = 2;
      Trainer trainer(world, {"last", {1, 2}, rank - 1}, world.device(), config, corpus);
      ASSERT_EQ(members(trainer, "tp"), tp ? (Members{1, 2}) : Members{rank});
      ASSERT_EQ(members(trainer, "pp"), tp ? Members{rank} : (Members{1, 2}));
      trainer.step();
      EXPECT_TRUE(std::isfinite(trainer.mean_loss()));
      config.degrees = {};
    }
  });
}

}  // namespace
}  // namespace suite

// However many ranks share the trainings of a reference, its numbers are the same.

#include "suite/training_step/reference_runs.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "machine/base/bytes.h"
#include "machine/world/world.h"
#include "suite/configuration/models.h"

namespace suite {
namespace {

TrainingConfig tiny() {
  TrainingConfig config;
  set_model(config, "tiny");
  config.batch.global_batch_size = 2;
  config.precision.dtype = machine::Dtype::bfloat16;
  return config;
}

// Returns the runs as bytes, by ranks that share them.
std::vector<std::string> runs_of(int ranks) {
  std::vector<std::string> all;
  machine::run_ranks(ranks, [&](machine::World& world) {
    const TrainingConfig config = tiny();
    const Corpus corpus = Corpus::generated(config.seed, config.model.tokens);
    const ReferenceRuns runs = reference_runs(world, world.group(), config, corpus, {}, {});
    if (world.rank() != 0) return;
    for (const History* history : {&runs.undisturbed, &runs.plain, &runs.same, &runs.disturbed[0],
                                   &runs.disturbed[1], &runs.disturbed[2]})
      all.push_back(machine::encode(*history));
  });
  return all;
}

TEST(ReferenceRuns, HaveTheSameNumbersOnAnyRanks) {
  const std::vector<std::string> alone = runs_of(1);
  ASSERT_EQ(alone.size(), 6u);
  for (std::size_t i = 0; i < alone.size(); ++i)
    for (std::size_t j = 0; j < i; ++j) EXPECT_NE(alone[i], alone[j]) << i << " and " << j;
  for (const int ranks : {2, 3, 8}) EXPECT_EQ(runs_of(ranks), alone) << ranks << " ranks";
}

// Rank 0 keeps a reference, so the others must not wait for their part of it.
TEST(ReferenceRuns, AreNotRepeatedForTheSameTraining) {
  machine::run_ranks(2, [](machine::World& world) {
    const TrainingConfig config = tiny();
    const Corpus corpus = Corpus::generated(config.seed, config.model.tokens);
    const machine::Group alone = machine::first_ranks("alone", 1, world.rank());
    Reference first;
    if (world.rank() == 0) first = reference_of(world, alone, config, corpus);
    const Reference second = reference_of(world, world.group(), config, corpus);
    if (world.rank() == 0) {
      EXPECT_EQ(machine::encode(first), machine::encode(second));
    }
  });
}

}  // namespace
}  // namespace suite

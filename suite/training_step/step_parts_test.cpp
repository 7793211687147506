// Compares the time of a part, by the step's clock, with the same step without this part.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "machine/base/clock.h"
#include "machine/world/step_clock.h"
#include "suite/configuration/models.h"
#include "suite/trainer/trainer.h"

namespace suite {
namespace {

// Each transfer over dp takes at least a known time. A step of each rank on only its own sequences
// has no transfers, and takes as long as the rest of the full step. The test uses the shortest of
// several rounds, so a busy machine does not matter.
TEST(StepParts, RemovingCommunicationSavesItsClockedTime) {
  constexpr double added_s = 0.1;
  const auto corpus = Corpus::generated(1234);
  machine::run_ranks(2, [&](machine::World& world) {
    TrainingConfig config;
    set_model(config, "tiny");
    config.zero.stage = 0;
    config.batch.global_batch_size = 4;
    const machine::Group alone{"alone", {world.rank()}, 0};
    Trainer one(world, alone, world.device(), config, corpus);
    int transfers = 0;
    config.degrees = {.dp = 2};
    config.batch.global_batch_size = 8;
    config.zero.options.before_transfer = [&](std::size_t) {
      ++transfers;
      std::this_thread::sleep_for(std::chrono::duration<double>(added_s));
    };
    Trainer both(world, world.group(), world.device(), config, corpus);
    both.step();
    one.step();
    transfers = 0;
    constexpr int rounds = 5;
    double step_s = 1e9, rest_s = 1e9, alone_s = 1e9;
    for (int round = 0; round < rounds; ++round) {
      machine::StepClock clock;
      clock.start();
      both.step();
      clock.stop();
      double communication = 0;
      for (const auto& row : clock.times().own.rows)
        if (row.part == machine::Part::communication) communication += row.seconds;
      const double step = clock.times().end_s - clock.times().start_s;
      step_s = std::min(step_s, step);
      rest_s = std::min(rest_s, step - communication);
      for (int i = 0; i < 4; ++i) {  // short, so other load may miss it
        const double start_s = machine::steady_s();
        one.step();
        alone_s = std::min(alone_s, machine::steady_s() - start_s);
      }
    }
    const double added = added_s * transfers / rounds;
    EXPECT_GE(added, added_s);
    EXPECT_GE(step_s - alone_s, 0.75 * added) << "without it the step is shorter";
    EXPECT_LT(rest_s, alone_s + added / 4) << "and by what the clock calls communication";
    EXPECT_GT(rest_s, 0);
  });
}

}  // namespace
}  // namespace suite

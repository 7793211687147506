// A training step without a reference in double: right steps pass, and each broken one is found.

#include "suite/training_step/loss_curve.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "harness/record/record.h"
#include "suite/configuration/models.h"
#include "suite/testing/file_case.h"
#include "suite/testing/on_threads.h"
#include "suite/testing/small_steps.h"

namespace suite {
namespace {

using harness::Oracle, harness::OracleResult, harness::Record, harness::Ruling;
using on_threads::run;
using small_steps::steps;
using testing::Folder;

OracleResult result_of(const Record& record, Oracle oracle) {
  for (const OracleResult& result : record.oracles)
    if (result.oracle == oracle) return result;
  ADD_FAILURE() << "no " << name(oracle) << " in " << record.name;
  return {};
}

Record judged(const std::string& unit, const harness::LossReference& reference,
              harness::AxisFlags flags = {}, int ranks = 2) {
  flags.insert({{"ranks", std::to_string(ranks)}, {"data-parallel-size", std::to_string(ranks)}});
  const auto cases = steps(flags, unit);
  EXPECT_EQ(cases.size(), 1U);
  harness::RunOptions options;
  options.reference = reference;
  return run(cases, ranks, 0.001, options).at(0);
}

TEST(LossCurve, EveryStepUnitIsJudgedWithoutAReference) {
  for (const char* unit : {"training_speed", "gpt_step"}) {
    const Record record = judged(unit, {.kind = "none"});
    EXPECT_EQ(record.verdict, Ruling::pass) << unit << ": " << record.reason;
    const OracleResult numerics = result_of(record, Oracle::numerics);
    EXPECT_EQ(numerics.ruling, Ruling::skipped) << "no number was compared";
    testing::expect_words(numerics.text, {"--reference none compares no number", "changes from"});
    EXPECT_EQ(result_of(record, Oracle::determinism).ruling, Ruling::pass);
    EXPECT_EQ(record.losses.size(), 10U);
    testing::expect_words(record.note, {"--reference none"});
    EXPECT_FALSE(record.counters.contains("loss_error"));
  }
}

// The values of ZeRO stage 3 are gathered one part at a time.
TEST(LossCurve, ShardedValuesAreJudgedWithoutAReference) {
  for (const auto& [stage, tp] : {std::pair("3", "1"), {"1", "2"}}) {
    const Record record = judged("gpt_step", {.kind = "none"},
                                 {{"zero-stage", stage},
                                  {"tensor-model-parallel-size", tp},
                                  {"data-parallel-size", "2"},
                                  {"ranks", tp == std::string("2") ? "4" : "2"}},
                                 tp == std::string("2") ? 4 : 2);
    EXPECT_EQ(record.verdict, Ruling::pass) << record.reason;
  }
}

TEST(LossCurve, AStoredCurveServesOtherDegrees) {
  const Folder folder;
  const std::string path = folder.path("curve.json");
  const Record first = judged("training_speed", {.kind = "cpu", .save = path}, {}, 1);
  ASSERT_EQ(first.verdict, Ruling::pass) << first.reason;
  EXPECT_EQ(first.losses.size(), 10U);
  for (const int ranks : {1, 2}) {
    const Record second = judged("gpt_step", {.kind = "stored", .file = path}, {}, ranks);
    EXPECT_EQ(second.verdict, Ruling::pass) << second.reason;
    EXPECT_EQ(result_of(second, Oracle::numerics).ruling, Ruling::pass);
    testing::expect_words(second.note, {"--reference stored"});
  }
  const Record narrow =
      judged("training_speed", {.kind = "stored", .file = path}, {{"dtype", "bfloat16"}});
  EXPECT_EQ(narrow.verdict, Ruling::pass) << narrow.reason;
}

TEST(LossCurve, AStoredLossThatDiffersIsFound) {
  const Folder folder;
  const std::string path = folder.path("curve.json");
  ASSERT_EQ(judged("training_speed", {.kind = "none", .save = path}, {}, 1).verdict, Ruling::pass);
  StoredCurve curve = read_curve(path);
  const double tolerance = curve.tolerance.at("float");
  const double right = curve.losses[6];
  curve.losses[6] = right * (1 + 3 * tolerance);
  write_curve(path, curve);
  const Record record = judged("training_speed", {.kind = "stored", .file = path}, {}, 1);
  EXPECT_EQ(record.verdict, Ruling::fail);
  testing::expect_words(record.reason, {"numerics", "loss of step 7", "curve.json"});
  curve.losses[6] = right * (1 + tolerance / 3);
  write_curve(path, curve);
  const Record near = judged("training_speed", {.kind = "stored", .file = path}, {}, 1);
  EXPECT_EQ(near.verdict, Ruling::pass) << near.reason;
}

// The command line checks this before ranks start. The unit checks it again.
TEST(LossCurve, AnotherConfigurationIsRefusedBeforeTheRun) {
  const Folder folder;
  const std::string path = folder.path("curve.json");
  ASSERT_EQ(judged("training_speed", {.kind = "none", .save = path}, {}, 1).verdict, Ruling::pass);
  const auto cases = steps({{"ranks", "1"}, {"global-batch-size", "16"}}, "training_speed");
  harness::Files files;
  files.reference = {.kind = "stored", .file = path};
  EXPECT_EQ(testing::refusal([&] { steps({{"ranks", "1"}})[0].check_files(files); }), "accepted");
  testing::expect_words(testing::refusal([&] { cases.at(0).check_files(files); }),
                        {"train_batch_size is 16; expected 8", "curve.json"});
}

// Trains a tiny model over `ranks` replicas, lets `disturb` change it after the second step, and
// returns the merged record.
template <class Disturb>
Record disturbed(int ranks, const Disturb& disturb, double learning_rate = 1e-3) {
  Record record;
  machine::run_ranks(ranks, [&](machine::World& world) {
    TrainingConfig config;
    config.degrees.dp = ranks;
    set_model(config, "tiny");
    config.batch.global_batch_size = 12;
    config.zero.stage = 0;  // every replica has its own states
    config.optimizer.learning_rate = learning_rate;
    const Corpus corpus = Corpus::generated(1);
    Trainer trainer(world, world.group(), world.device(), config, corpus);
    harness::Judge judge(world.rank());
    const LossCurve curve = train(trainer, 4, [&](int step) {
      if (step == 2) disturb(trainer, world.rank());
      judge_replicas(judge, trainer, step);
    });
    judge_alone(judge, config, curve);
    const std::vector<harness::Judge> judges = world.all_gather(world.group(), judge);
    if (world.rank() != 0) return;
    const Oracle declared[] = {Oracle::numerics, Oracle::determinism};
    harness::merge(judges, declared, record);
  });
  return record;
}

TEST(LossCurve, AnUndisturbedRunPasses) {
  const Record record = disturbed(2, [](Trainer&, int) {});
  EXPECT_EQ(record.verdict, Ruling::pass) << record.reason;
}

TEST(LossCurve, OneBitOfAReplicaIsFound) {
  const Record record = disturbed(3, [](Trainer& trainer, int rank) {
    if (rank != 1) return;
    auto* const byte = static_cast<unsigned char*>(trainer.parameters().back()->value.data());
    *byte ^= 1;
  });
  EXPECT_EQ(record.verdict, Ruling::fail);
  const OracleResult result = result_of(record, Oracle::determinism);
  EXPECT_EQ(result.ruling, Ruling::fail);
  EXPECT_EQ(result.rank, 1);
  testing::expect_words(result.text, {"after step 2"});
}

TEST(LossCurve, ALossThatIsNotFiniteIsFound) {
  const Record record = disturbed(2, [](Trainer& trainer, int) {
    const machine::Tensor& value = trainer.parameters().back()->value;
    std::vector<double> values = to_doubles(value);
    values[0] = std::numeric_limits<double>::quiet_NaN();
    from_doubles(value, values);
  });
  EXPECT_EQ(record.verdict, Ruling::fail);
  testing::expect_words(record.reason, {"numerics", "of step 3, which must be finite"});
}

TEST(LossCurve, ALossThatRisesIsFound) {
  const Record record = disturbed(
      1, [](Trainer&, int) {}, 1.0);
  EXPECT_EQ(record.verdict, Ruling::fail);
  testing::expect_words(record.reason, {"must fall"});
}

TEST(LossCurve, ALearningRateOfZeroNeedsNoFall) {
  const Record record = disturbed(
      2, [](Trainer&, int) {}, 0);
  EXPECT_EQ(record.verdict, Ruling::pass) << record.reason;
  testing::expect_words(result_of(record, Oracle::numerics).text, {"the learning rate is 0"});
}

double most_resident_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return 1024.0 * static_cast<double>(usage.ru_maxrss);
}

// Every rank plans, starts and compares its part with its memory before it allocates a tensor.
TEST(LossCurve, AModelThatDoesNotFitIsRefusedWithoutAllocatingIt) {
  constexpr double small = 512e6;
  const double before = most_resident_bytes();
  const auto cases = steps({{"model", "llama2_70b"},
                            {"dtype", "double"},
                            {"ranks", "8"},
                            {"tensor-model-parallel-size", "2"},
                            {"pipeline-model-parallel-size", "2"},
                            {"data-parallel-size", "2"}},
                           "training_speed");
  ASSERT_EQ(cases.size(), 1U);
  harness::RunOptions options;
  options.reference.kind = "none";
  const Record record = run(cases, 8, 0.001, options).at(0);
  EXPECT_EQ(record.verdict, Ruling::skipped);
  testing::expect_words(record.reason,
                        {"needs at least", "of host memory", "are available", "degrees"});
  EXPECT_EQ(record.reason.find('\n'), std::string::npos);
  EXPECT_LT(most_resident_bytes() - before, small);
}

}  // namespace
}  // namespace suite

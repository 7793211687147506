#include "suite/files/stored_curve.h"

#include <gtest/gtest.h>

#include <string>

#include "suite/configuration/models.h"
#include "suite/testing/file_case.h"
#include "suite/training_step/curve_keys.h"

namespace suite {
namespace {

using testing::expect_words;
using testing::Folder;
using testing::read_bytes;
using testing::refusal;
using testing::write_bytes;

TrainingConfig tiny() {
  TrainingConfig config;
  set_model(config, "tiny");
  return config;
}

const Corpus& corpus() {
  static const Corpus generated = Corpus::generated(1234);
  return generated;
}

StoredCurve example() { return curve_of(tiny(), corpus(), Against::cpu, {5.5, 5.25, 5.0625}, {2}); }

// Returns the file with the first `from` replaced.
std::string with(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

TEST(StoredCurve, AFileKeepsEverything) {
  const Folder folder;
  const StoredCurve written = example();
  write_curve(folder.path("curve.json"), written);
  const StoredCurve read = read_curve(folder.path("curve.json"));
  EXPECT_EQ(read.configuration, written.configuration);
  EXPECT_EQ(read.dtype, "float");
  EXPECT_EQ(read.judged, Against::cpu);
  EXPECT_EQ(read.losses, written.losses);
  EXPECT_EQ(read.skipped, written.skipped);
  EXPECT_EQ(read.tolerance, written.tolerance);
  EXPECT_LT(read.tolerance.at("float"), read.tolerance.at("half"));
  EXPECT_LT(read.tolerance.at("half"), read.tolerance.at("bfloat16"));
  EXPECT_EQ(refusal([&] { check_curve("curve.json", read, curve_keys(tiny(), corpus())); }),
            "accepted");
}

// A curve serves every placement of the same training.
TEST(StoredCurve, DoesNotDependOnPlacement) {
  TrainingConfig other = tiny();
  other.degrees = {.tp = 2, .dp = 2, .pp = 2};
  other.pipeline.schedule = "gpipe";
  other.zero.stage = 1;
  other.precision.dtype = machine::Dtype::bfloat16;
  other.batch.micro_batch_size = 2;
  other.activations.use_flash_attn = true;
  other.transport = machine::Transport::mpi;
  EXPECT_EQ(curve_keys(other, corpus()), curve_keys(tiny(), corpus()));
}

TEST(StoredCurve, NamesTheFirstKeyThatDiffers) {
  const StoredCurve stored = example();
  const auto refused = [&](const auto& change, const Corpus& data = corpus()) {
    TrainingConfig config = tiny();
    change(config);
    return refusal([&] { check_curve("curve.json", stored, curve_keys(config, data)); });
  };
  expect_words(refused([](TrainingConfig& c) { c.model.hidden = 64; }),
               {"--hidden-size is 64; expected 32, as in --reference-file curve.json"});
  expect_words(refused([](TrainingConfig& c) { c.optimizer.learning_rate = 0.5; }),
               {"optimizer.params.lr is 0.5; expected 0.001"});
  expect_words(refused([](TrainingConfig& c) { c.batch.global_batch_size = 16; }),
               {"train_batch_size is 16; expected 8"});
  expect_words(refused([](TrainingConfig& c) { c.model.sequence = 16; }),
               {"--seq-length is 16; expected 32"});
  expect_words(refused([](TrainingConfig& c) { c.seed = 7; }), {"--seed is 7; expected 1234"});
  expect_words(refused([](TrainingConfig& c) { c.uneven_tokens = true; }),
               {"uneven-tokens is true"});
  expect_words(refused([](TrainingConfig& c) { c.weights = "a/model.safetensors"; }),
               {"--load is model.safetensors; expected none"});
  StoredCurve more = stored;
  more.configuration.emplace_back("--new-key", "1");
  expect_words(refusal([&] { check_curve("f", more, curve_keys(tiny(), corpus())); }),
               {"--new-key is not set; expected 1"});
}

TEST(StoredCurve, RefusesADamagedFileByItsKey) {
  const Folder folder;
  const std::string path = folder.path("curve.json");
  write_curve(path, example());
  const std::string whole = read_bytes(path);
  const auto refused = [&](const std::string& from, const std::string& to) {
    write_bytes(path, with(whole, from, to));
    return refusal([&] { read_curve(path); });
  };
  expect_words(refused("loss curve 1", "loss curve 9"), {path, "format is", "curve 9"});
  expect_words(refused("\"--hidden-size\": \"32\"", "\"--hidden-size\": \"64\""),
               {"configuration_hash"});
  expect_words(refused("\"steps\": 3", "\"steps\": 4"), {"steps is 4; expected 3"});
  expect_words(refused("5.25", "-5.25"), {"losses has -5.25"});
  expect_words(refused("5.25", "\"low\""), {"losses has a value of type string"});
  expect_words(refused("\"bfloat16\":", "\"bfloat\":"), {"bfloat16"});
  expect_words(refused("\"judged\": \"cpu\"", "\"judged\": \"gpu\""), {"'gpu'"});
  expect_words(refused("\"losses\"", "\"looses\""), {"losses"});
  write_bytes(path, whole.substr(0, whole.size() / 2));
  expect_words(refusal([&] { read_curve(path); }), {path});
}

TEST(StoredCurve, RefusesOptionsThatDoNotFitTogether) {
  const Folder folder;
  const auto refused = [](const harness::LossReference& reference, std::ptrdiff_t steps = 1) {
    try {
      check_reference(reference, steps);
    } catch (const harness::UsageError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(refused({}, 0), "accepted");
  EXPECT_EQ(refused({.kind = "none"}), "accepted");
  EXPECT_EQ(refused({.kind = "none", .save = folder.path("new.json")}), "accepted");
  EXPECT_EQ(refused({.kind = "stored", .file = "f"}, 3), "accepted");
  expect_words(refused({.kind = "non"}), {"'non'", "'none'"});
  expect_words(refused({.kind = "stored"}), {"--reference stored requires --reference-file"});
  expect_words(refused({.file = "f"}), {"--reference-file requires --reference stored (got cpu)"});
  expect_words(refused({.kind = "stored", .file = "f", .save = "g"}), {"got stored"});
  expect_words(refused({.kind = "none"}, 0), {"a case of a training step"});
  expect_words(refused({.kind = "none", .save = "f"}, 2), {"exactly one case", "got 2"});
  expect_words(refused({.save = folder.path("no/f")}), {"no/f"});
}

}  // namespace
}  // namespace suite

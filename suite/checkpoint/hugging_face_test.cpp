// Conversions in both directions give the same values. hugging_face_test.py compares the files with
// another implementation of the models.

#include "suite/checkpoint/hugging_face.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

#include "suite/checkpoint/training_checkpoint.h"
#include "suite/configuration/models.h"
#include "suite/files/safetensors.h"
#include "suite/testing/file_case.h"

namespace suite {
namespace {

using machine::Dtype;
using testing::expect_words;
using testing::Folder;
using testing::read_bytes;
using testing::refusal;
using testing::write_bytes;

TrainingConfig config_of(const char* model, Dtype dtype) {
  TrainingConfig config;
  set_model(config, model);
  config.model.tokens = 200;
  config.model.make_vocab_size_divisible_by = 64;
  complete_shape(config);
  config.precision.dtype = dtype;
  config.optimizer.learning_rate = 0;
  config.batch.global_batch_size = 4;
  return config;
}

void save_initial(const TrainingConfig& config, const std::string& folder) {
  machine::run_ranks(1, [&](machine::World& world) {
    const Corpus corpus = Corpus::generated(config.seed, config.model.tokens);
    Trainer trainer(world, world.group(), world.device(), config, corpus);
    save_checkpoint(trainer, folder, checkpoint_keys(config, corpus));
  });
}

// With a learning rate of 0 an update rounds the master copy to the values. The seed differs, so
// all initial values do.
TEST(HuggingFace, LoadedWeightsReachTheOptimizer) {
  for (const char* model : {"tiny", "llama_tiny"}) {
    const Folder folder;
    TrainingConfig config = config_of(model, Dtype::bfloat16);
    config.seed = 2;
    save_initial(config, folder.path("saved"));
    to_hugging_face(folder.path("saved"), folder.path("theirs"), {});
    from_hugging_face(folder.path("theirs"), folder.path("ours"), {});
    config.seed = 1;
    config.degrees = {.dp = 2};
    for (int stage = 0; stage < 4; ++stage)
      for (const auto device : {zero::OffloadDevice::none, zero::OffloadDevice::cpu}) {
        config.zero.stage = stage;
        config.zero.param_persistence_threshold = 100;
        config.zero.options.offload_optimizer.device = device;
        if (stage == 3) config.zero.options.offload_param.device = device;
        machine::run_ranks(2, [&](machine::World& world) {
          const Corpus corpus = Corpus::generated(config.seed, config.model.tokens);
          check_checkpoint(open_checkpoint(folder.path("ours")), config, corpus);
          Trainer trainer(world, world.group(), world.device(), config, corpus);
          const std::uint64_t initial = trainer.hash_of_values();
          load_checkpoint(folder.path("ours"), trainer);
          const std::uint64_t loaded = trainer.hash_of_values();
          EXPECT_NE(loaded, initial);
          trainer.step();
          EXPECT_EQ(trainer.hash_of_values(), loaded) << model << " stage " << stage;
          EXPECT_EQ(trainer.steps(), 1);
        });
      }
  }
}

TEST(HuggingFace, BothDirectionsKeepTheBits) {
  for (const char* model : {"tiny", "llama_tiny"}) {
    const Folder folder;
    const TrainingConfig config = config_of(model, Dtype::float32);
    save_initial(config, folder.path("saved"));
    to_hugging_face(folder.path("saved"), folder.path("a"), {});
    from_hugging_face(folder.path("a"), folder.path("ours"), {});
    to_hugging_face(folder.path("ours"), folder.path("b"), {});
    for (const char* file : {"/model.safetensors", "/config.json"})
      EXPECT_EQ(read_bytes(folder.path("a") + file), read_bytes(folder.path("b") + file)) << file;
    to_hugging_face(folder.path("ours"), folder.path("half"), Dtype::float16);
    const Safetensors half(folder.path("half/model.safetensors"));
    EXPECT_EQ(half.tensors().front().dtype, "F16");
    EXPECT_EQ(half.tensors().front().shape_text(), "[200, 32]");
  }
}

TEST(HuggingFace, RejectsOtherFolders) {
  const Folder folder;
  const TrainingConfig config = config_of("llama_tiny", Dtype::float32);
  save_initial(config, folder.path("saved"));
  to_hugging_face(folder.path("saved"), folder.path("hf"), {});
  const std::string path = folder.path("hf/config.json"), good = read_bytes(path);
  const auto edited = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    write_bytes(path, text.replace(at, from.size(), to));
    return refusal([&] { from_hugging_face(folder.path("hf"), folder.path("ours"), {}); });
  };
  expect_words(edited("\"llama\"", "\"bert\""), {path, "model_type is 'bert'", "gpt2 or llama"});
  expect_words(edited("\"silu\"", "\"gelu\""), {path, "hidden_act is \"gelu\""});
  expect_words(edited("\"hidden_size\": 32", "\"hidden_size\": 64"),
               {"'model.embed_tokens.weight' is [200, 32]; expected [200, 64]"});
  expect_words(edited("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3"),
               {"has no tensor 'model.layers.2.input_layernorm.weight'"});
  expect_words(edited("{", "[{"), {path, "parse error"});
  EXPECT_EQ(edited("{", "{"), "accepted");
  expect_words(refusal([&] { to_hugging_face(folder.path("none"), folder.path("x"), {}); }),
               {"index.json", "No such file"});
}

}  // namespace
}  // namespace suite

// A training that is saved and continued has the same bits at equal degrees, and the same states at
// others, for every ZeRO stage, place of the states, schedule and optimizer.

#include "suite/checkpoint/training_checkpoint.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "layers/models/gpt_cost.h"
#include "suite/configuration/models.h"
#include "suite/testing/file_case.h"
#include "suite/testing/on_threads.h"
#include "zero/offload/io_ring.h"

namespace suite {
namespace {

using machine::Dtype;
using on_threads::sanitized;
using testing::expect_words;
using testing::Folder;
using testing::refusal;

constexpr int half_way = 3, all_steps = 6;

TrainingConfig config_of(machine::Degrees degrees, int stage, const char* model = "tiny") {
  TrainingConfig config;
  config.degrees = degrees;
  set_model(config, model);
  config.batch.global_batch_size = 8;
  config.zero.stage = stage;
  config.zero.reduce_bucket_size = 5'000;
  config.zero.param_persistence_threshold = 100;
  config.zero.options.stage3_prefetch_bucket_size = 7'000;
  config.zero.options.offload_param.max_in_cpu = 0;
  config.zero.optimizer_path = config.zero.parameter_path = ::testing::TempDir();
  return config;
}

struct Trained {
  std::vector<double> losses, scales;
  std::uint64_t hash = 0;
  bool operator==(const Trained&) const = default;
};

Trained train(Trainer& trainer, int last) {
  Trained trained;
  while (trainer.steps() < last) {
    trained.scales.push_back(trainer.loss_scale());
    trainer.step();
    trained.losses.push_back(trainer.mean_loss());
  }
  trained.hash = trainer.hash_of_values();
  return trained;
}

// Saves what a checkpoint holds, or without one the states after half of the steps.
void save_again(const TrainingConfig& config, const std::string& from, const std::string& to) {
  machine::run_ranks(config.degrees.ranks(), [&](machine::World& world) {
    const Corpus corpus = Corpus::generated(config.seed);
    Trainer trainer(world, world.group(), world.device(), config, corpus);
    if (from.empty())
      train(trainer, half_way);
    else
      load_checkpoint(from, trainer);
    save_checkpoint(trainer, to, checkpoint_keys(config, corpus));
  });
}

// Returns the checksums of all pieces.
std::map<std::string, std::uint32_t> pieces(const std::string& folder) {
  const zero::Checkpoint checkpoint = open_checkpoint(folder);
  checkpoint.verify();
  std::map<std::string, std::uint32_t> found;
  for (const auto& [name, of_name] : checkpoint.tensors())
    for (const auto& [stored, part] : of_name)
      found[fmt::format("{} {} {}", name, part, stored.piece.range.begin)] = stored.checksum;
  return found;
}

// Returns the whole tensors, without padding.
std::map<std::string, std::vector<double>> whole(const std::string& folder, std::int64_t rows) {
  const zero::Checkpoint checkpoint = open_checkpoint(folder);
  const auto host = machine::make_host_device();
  std::map<std::string, std::vector<double>> tensors;
  for (const auto& [name, of_name] : checkpoint.tensors()) {
    zero::Piece piece = of_name.front().stored.piece;
    const bool table = (name.find("token.weight") != std::string::npos ||
                        name.find("head.output.") != std::string::npos) &&
                       !name.ends_with("/scales");
    piece.extent = piece.global;
    if (table) piece.extent[0] = rows;
    piece.begin.assign(piece.global.size(), 0);
    piece.range = {0, 1};
    for (const std::int64_t extent : piece.extent) piece.range.end *= extent;
    const zero::Tensor read(*host, of_name.front().stored.dtype, {piece.size()},
                            machine::Category::buffers);
    checkpoint.read(piece, read);
    tensors[name] = to_doubles(read);
  }
  return tensors;
}

// A delayed update is applied by a save, so the training that saves is compared.
void expect_continues(const TrainingConfig& config, const std::string& what) {
  SCOPED_TRACE(what);
  const Folder folder;
  machine::run_ranks(config.degrees.ranks(), [&](machine::World& world) {
    const Corpus corpus = Corpus::generated(config.seed);
    const zero::Texts keys = checkpoint_keys(config, corpus);
    const auto make = [&] {
      return std::make_unique<Trainer>(world, world.group(), world.device(), config, corpus);
    };
    Trained rest;
    {
      const auto trainer = make();
      train(*trainer, half_way);
      save_checkpoint(*trainer, folder.path("half"), keys);
      rest = train(*trainer, all_steps);
      save_checkpoint(*trainer, folder.path("whole"), keys);
    }
    const auto trainer = make();
    trainer->step();  // every state differs from the initial one
    load_checkpoint(folder.path("half"), *trainer);
    EXPECT_EQ(train(*trainer, all_steps), rest);
    save_checkpoint(*trainer, folder.path("continued"), keys);
  });
  EXPECT_EQ(pieces(folder.path("whole")), pieces(folder.path("continued")));
}

TEST(TrainingCheckpoint, EveryStageContinuesWithTheSameBits) {
  for (int stage = 0; stage < 4; ++stage)
    for (const Dtype dtype : {Dtype::float32, Dtype::bfloat16}) {
      TrainingConfig config = config_of({.tp = 2, .dp = 2}, stage);
      config.precision.dtype = dtype;
      config.activations.sequence_parallel = stage % 2 == 1;
      config.model.hidden_dropout = config.model.attention_dropout = 0.1;
      config.uneven_tokens = true;
      expect_continues(config, fmt::format("stage {} {}", stage, machine::name(dtype)));
    }
}

TEST(TrainingCheckpoint, OffloadedStatesContinueWithTheSameBits) {
  using enum zero::OffloadDevice;
  const bool ring = zero::IoRing::why_not().empty();
  for (const auto device : {cpu, nvme})
    for (int stage = 0; stage < 4; ++stage) {
      if (device == nvme && !ring) continue;
      TrainingConfig config = config_of({.dp = 2}, stage);
      config.precision.dtype = Dtype::bfloat16;
      config.zero.options.offload_optimizer.device = device;
      if (device == cpu && stage == 1) config.zero.options.offload_optimizer.cpu.ratio = 0.6;
      if (stage == 3) config.zero.options.offload_param.device = device;
      expect_continues(config, fmt::format("{}, stage {}", zero::name(device), stage));
    }
  TrainingConfig delayed = config_of({.dp = 2}, 1);
  delayed.zero.options.offload_optimizer.device = cpu;
  delayed.zero.options.offload_optimizer.cpu.delayed_update = true;
  expect_continues(delayed, "delayed update");
}

TEST(TrainingCheckpoint, EveryScheduleContinuesWithTheSameBits) {
  int stage = 0;
  for (const char* schedule : {"1f1b", "interleaved_1f1b", "zb_h1", "zb_v", "dual_pipe"})
    for (int more = 0; more < (sanitized ? 1 : 2); ++more) {
      TrainingConfig config = config_of({.dp = 2, .pp = 2}, stage++ % 4);
      config.model.layers = 4;
      config.pipeline.schedule = schedule;
      expect_continues(config, fmt::format("{}, stage {}", schedule, config.zero.stage));
    }
}

TEST(TrainingCheckpoint, EveryOptimizerAndLossScaleContinuesWithTheSameBits) {
  for (const char* optimizer : {"adamw", "adamw_8bit", "sgd", "rmsprop", "lion", "lamb", "muon",
                                "adafactor", "one_bit_adam", "one_bit_lamb"})
    for (const double momentum : {0.0, 0.9}) {
      TrainingConfig config = config_of({.tp = 2}, 1);
      config.optimizer.type = optimizer;
      if (config.optimizer.is_one_bit()) config.zero.stage = 0;
      config.optimizer.min_8bit_size = 2000;  // some parameters have codes, others have not
      config.optimizer.freeze_step = 1;       // without replicas there are no errors to lose
      config.optimizer.decoupled_decay = momentum == 0;
      const std::string type = optimizer;
      config.optimizer.momentum = type == "sgd" || type == "muon" ? momentum : 0;
      config.optimizer.weight_decay = 0.1;
      config.schedule.lr_warmup_iters = 4;
      config.schedule.lr_decay_iters = 20;
      expect_continues(config, fmt::format("{} {}", optimizer, momentum));
    }
  for (const int power : {7, 30}) {  // the larger scale skips steps
    TrainingConfig config = config_of({.dp = 2}, 2, "llama_tiny");
    config.precision.dtype = Dtype::float16;
    config.precision.loss_scale = {.scaling = zero::LossScaling::megatron,
                                   .initial_scale = std::ldexp(1.0, power),
                                   .window = 2,
                                   .hysteresis = 2};
    expect_continues(config, fmt::format("half, scale 2^{}", power));
  }
}

// The grids have different padding of the table. The next losses differ only by rounding: each
// layer has an error of 2u + sqrt(n) u in n = 4 * 32 additions (reference.h's bound for both runs).
TEST(TrainingCheckpoint, OtherDegreesContinueWithTheSameStates) {
  struct Place {
    machine::Degrees degrees;
    int stage;
    const char* schedule;
    zero::OffloadDevice device;
  };
  using enum zero::OffloadDevice;
  const std::vector<Place> places{{{}, 0, "1f1b", none},
                                  {{.tp = 4}, 1, "1f1b", cpu},
                                  {{.dp = 3}, 2, "1f1b", none},
                                  {{.tp = 2, .dp = 2, .pp = 2}, 3, "zb_v", none},
                                  {{.pp = 2}, 3, "dual_pipe", none},
                                  {{.tp = 2, .dp = 2}, 3, "1f1b", cpu}};
  for (const std::string model : {"tiny", "llama_tiny", "bert_tiny", "t5_tiny"})
    for (std::size_t from = 0; from < places.size(); ++from) {
      if (model != "tiny" && model != "llama_tiny" && from != 1) continue;  // one is enough
      const Folder folder;
      std::vector<double> losses;
      for (const std::size_t to : {from, (from + 1) % places.size(), (from + 3) % places.size()}) {
        const auto& [degrees, stage, schedule, device] = places[to];
        TrainingConfig config = config_of(degrees, stage);
        set_model(config, model);
        config.model.layers = 4;
        config.model.tokens = 200;
        config.model.make_vocab_size_divisible_by = 8;
        complete_shape(config);
        config.batch.global_batch_size = 12;
        config.pipeline.schedule = schedule;
        config.zero.options.offload_optimizer.device = device;
        if (stage == 3) config.zero.options.offload_param.device = device;
        const std::string name = folder.path(to == from ? "saved" : "read");
        machine::run_ranks(degrees.ranks(), [&](machine::World& world) {
          const Corpus corpus = Corpus::generated(config.seed, 200);
          Trainer trainer(world, world.group(), world.device(), config, corpus);
          if (to == from)
            train(trainer, half_way);
          else
            load_checkpoint(folder.path("saved"), trainer);
          save_checkpoint(trainer, name, checkpoint_keys(config, corpus));
          const std::vector<double> next = train(trainer, half_way + 1).losses;
          if (world.rank() != 0) return;
          if (to == from) losses = next;
          const double u = 0x1p-24, bound = 2 * 4 * (2 + std::sqrt(128.0)) * 6 * u;
          EXPECT_NEAR(next[0] / losses[0], 1, bound) << model << " " << from << " to " << to;
        });
        if (to == from) continue;
        EXPECT_EQ(whole(name, 200), whole(folder.path("saved"), 200))
            << model << " " << from << " to " << to;
        check_checkpoint(open_checkpoint(name), config, Corpus::generated(config.seed, 200));
      }
    }
}

// Experts move to other parts and holders: over tp, as many as tp, whole ones, and more parts.
// Every element is written once.
TEST(TrainingCheckpoint, ExpertsMoveToOtherDegrees) {
  struct Place {
    machine::Degrees degrees;
    int ep, etp, stage;
  };
  const Folder folder;
  const std::vector<Place> places{{{.tp = 2, .dp = 2}, 2, 1, 1}, {{.tp = 2, .dp = 2}, 2, 2, 0},
                                  {{.tp = 2}, 1, 1, 3},          {{.dp = 4}, 2, 2, 2},
                                  {{.tp = 4}, 1, 2, 0},          {{}, 1, 1, 0}};
  for (std::size_t to = 0; to < places.size(); ++to) {
    const auto& [degrees, ep, etp, stage] = places[to];
    TrainingConfig config = config_of(degrees, stage, "moe_tiny");
    config.expert_parallel = ep;
    config.expert_tensor_parallel = etp;
    config.activations.sequence_parallel = degrees.tp > 1;
    config.zero.overlap_comm = false;
    const std::string name = folder.path(to == 0 ? "saved" : fmt::format("read {}", to));
    save_again(config, to == 0 ? "" : folder.path("saved"), name);
    EXPECT_EQ(whole(name, 256), whole(folder.path("saved"), 256)) << to;
    std::int64_t stored = 0;
    const zero::Checkpoint checkpoint = open_checkpoint(name);
    for (const auto& [tensor, of_name] : checkpoint.tensors())
      for (const auto& one : of_name) stored += one.stored.piece.size();
    EXPECT_EQ(stored, 3 * layers::parameters_count(config.model)) << to;
  }
}

// Codes and scales of 8-bit AdamW have the same bits at other degrees of dp and pp and in another
// ZeRO stage. Another degree of tp has other blocks.
TEST(TrainingCheckpoint, CodesMoveToOtherShards) {
  const auto place = [](machine::Degrees degrees, int stage) {
    TrainingConfig config = config_of(degrees, stage);
    config.optimizer.type = "adamw_8bit";
    config.optimizer.min_8bit_size = 1000;
    config.precision.dtype = Dtype::bfloat16;
    return config;
  };
  const Folder folder;
  const std::vector<TrainingConfig> places{place({.tp = 2, .dp = 2}, 3), place({.tp = 2}, 0),
                                           place({.tp = 2, .dp = 2, .pp = 2}, 1),
                                           place({.tp = 2, .dp = 3}, 2)};
  for (std::size_t to = 0; to < places.size(); ++to) {
    TrainingConfig config = places[to];
    if (config.degrees.dp == 3) config.batch.global_batch_size = 9;
    const std::string name = folder.path(to == 0 ? "saved" : "read");
    save_again(config, to == 0 ? "" : folder.path("saved"), name);
    EXPECT_EQ(whole(name, 256), whole(folder.path("saved"), 256)) << to;
  }
  EXPECT_TRUE(
      whole(folder.path("saved"), 256).contains("embedding.token.weight/first_moment/scales"));
  expect_words(refusal([&] {
                 check_checkpoint(open_checkpoint(folder.path("saved")), place({}, 0),
                                  Corpus::generated(places[0].seed));
               }),
               {"--tensor-model-parallel-size is 1; expected 2, as in checkpoint"});
}

// No element is written twice: a replica over tp, dp and two stages is written once.
TEST(TrainingCheckpoint, StoresEveryElementOnce) {
  for (const auto& [degrees, schedule] :
       {std::pair(machine::Degrees{.tp = 2, .dp = 2, .pp = 2}, "1f1b"), {{.pp = 2}, "dual_pipe"}})
    for (const int stage : {0, 3}) {
      const Folder folder;
      TrainingConfig config = config_of(degrees, stage);
      config.pipeline.schedule = schedule;
      if (schedule == std::string("dual_pipe")) config.model.layers = 4;
      machine::run_ranks(degrees.ranks(), [&](machine::World& world) {
        const Corpus corpus = Corpus::generated(config.seed);
        Trainer trainer(world, world.group(), world.device(), config, corpus);
        save_checkpoint(trainer, folder.path("once"), checkpoint_keys(config, corpus));
      });
      const int h = config.model.hidden, layers = config.model.layers;
      // Table, positions, twelve h^2 and thirteen h of each block, and the last norm.
      const std::int64_t elements =
          std::int64_t{256 + 32} * h + std::int64_t{layers} * (12 * h * h + 13 * h) + 2 * h;
      std::int64_t stored = 0;
      const zero::Checkpoint checkpoint = open_checkpoint(folder.path("once"));
      for (const auto& [name, of_name] : checkpoint.tensors())
        for (const auto& one : of_name) stored += one.stored.piece.size();
      EXPECT_EQ(stored, 3 * elements) << schedule << stage;  // values and two moments
    }
}

TEST(TrainingCheckpoint, RejectsAnotherTraining) {
  const Folder folder;
  const TrainingConfig config = config_of({}, 0);
  const Corpus corpus = Corpus::generated(config.seed);
  machine::run_ranks(1, [&](machine::World& world) {
    Trainer trainer(world, world.group(), world.device(), config, corpus);
    save_checkpoint(trainer, folder.path("ck"), checkpoint_keys(config, corpus));
  });
  const auto with = [&](const std::function<void(TrainingConfig&)>& change) {
    TrainingConfig other = config;
    change(other);
    return refusal([&] { check_checkpoint(open_checkpoint(folder.path("ck")), other, corpus); });
  };
  EXPECT_EQ(with([](TrainingConfig&) {}), "accepted");
  expect_words(with([](auto& c) { c.model.hidden = 64; }),
               {"--hidden-size is 64; expected 32, as in checkpoint"});
  expect_words(with([](auto& c) { c.precision.dtype = Dtype::float16; }),
               {"--dtype is half; expected float"});
  expect_words(with([](auto& c) { c.optimizer.type = "sgd"; }), {"--optimizer is sgd"});
  expect_words(with([](auto& c) { c.seed = 7; }), {"--seed is 7"});
  EXPECT_EQ(with([](auto& c) { c.optimizer.learning_rate = 7; }), "accepted");
  const TrainingConfig::Model model = model_of(open_checkpoint(folder.path("ck")));
  EXPECT_EQ(model.layers, 2);
  EXPECT_EQ(model.vocabulary, 256);
  EXPECT_EQ(model.sequence, 32);
  const zero::Checkpoint open = open_checkpoint(folder.path("ck"));
  const std::string part = folder.path("ck/") + open.save_name() + "-rank-0-of-1.part";
  std::filesystem::rename(part, part + ".away");
  expect_words(with([](TrainingConfig&) {}), {part, "No such file"});
}

}  // namespace
}  // namespace suite

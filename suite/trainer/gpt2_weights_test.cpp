#include "suite/trainer/gpt2_weights.h"

#include <cstring>
#include <functional>
#include <map>
#include <mutex>

#include "suite/files/safetensors.h"
#include "suite/testing/file_case.h"
#include "suite/trainer/gpt2_tensors.h"
#include "suite/trainer/trainer.h"

namespace suite {
namespace {

using machine::Dtype;
using testing::expect_words;
using testing::Folder;
using testing::read_bytes;
using testing::refusal;

const layers::GptConfig model{
    .layers = 2, .hidden = 8, .heads = 4, .vocabulary = 256, .sequence = 16};

// Tensors as in a file of Hugging Face. An element is 4096 times its tensor's number (from 1) plus
// its index, so all elements differ.
struct WeightsFile {
  struct Tensor {
    TensorEntry entry;
    std::vector<float> values;
  };
  std::vector<Tensor> tensors;

  explicit WeightsFile(std::uint64_t vocabulary = 256, const std::string& prefix = "") {
    constexpr std::uint64_t h = 8;
    add(prefix + "wte.weight", {vocabulary, h});
    add(prefix + "wpe.weight", {16, h});
    for (const std::string block : {"h.0.", "h.1."}) {
      add(prefix + block + "ln_1.weight", {h});
      add(prefix + block + "ln_1.bias", {h});
      add(prefix + block + "attn.c_attn.weight", {h, 3 * h});
      add(prefix + block + "attn.c_attn.bias", {3 * h});
      add(prefix + block + "attn.c_proj.weight", {h, h});
      add(prefix + block + "attn.c_proj.bias", {h});
      add(prefix + block + "ln_2.weight", {h});
      add(prefix + block + "ln_2.bias", {h});
      add(prefix + block + "mlp.c_fc.weight", {h, 4 * h});
      add(prefix + block + "mlp.c_fc.bias", {4 * h});
      add(prefix + block + "mlp.c_proj.weight", {4 * h, h});
      add(prefix + block + "mlp.c_proj.bias", {h});
    }
    add(prefix + "ln_f.weight", {h});
    add(prefix + "ln_f.bias", {h});
  }

  void add(const std::string& name, std::vector<std::uint64_t> shape) {
    std::uint64_t size = 1;
    for (const std::uint64_t extent : shape) size *= extent;
    tensors.push_back({{name, "F32", std::move(shape)}, {}});
    for (std::uint64_t i = 0; i < size; ++i)
      tensors.back().values.push_back(static_cast<float>(4096 * tensors.size() + i));
  }
  Tensor& at(const std::string& name) {
    return *std::ranges::find(tensors, name,
                              [](const Tensor& tensor) { return tensor.entry.name; });
  }

  void write(const std::string& path) const {
    std::vector<TensorEntry> entries;
    for (const Tensor& tensor : tensors) entries.push_back(tensor.entry);
    SafetensorsWriter writer(path, entries);
    for (const auto& [entry, values] : tensors) {
      std::string bytes;
      for (const float value : values) {
        if (entry.dtype == "F32") testing::append(bytes, value);
        if (entry.dtype == "F16") testing::append(bytes, machine::Half(value).bits);
        if (entry.dtype == "BF16") testing::append(bytes, machine::Bfloat16(value).bits);
      }
      writer.add(std::as_bytes(std::span(bytes)));
    }
    writer.finish();
  }
};

TrainingConfig training(machine::Degrees degrees, const std::string& weights = "") {
  TrainingConfig config;
  config.model = model;
  config.degrees = degrees;
  config.batch.global_batch_size = 4;
  config.weights = weights;
  return config;
}

using Values = std::map<std::string, std::vector<double>>;

struct Trained {
  std::vector<double> losses;   // of each step
  std::vector<Values> initial;  // the shards of each rank
};
// Trains. Saves before the first step if `save` is not empty.
Trained train(const TrainingConfig& config, const std::string& save = "", int steps = 3) {
  static const Corpus corpus = Corpus::generated(3);
  Trained result;
  result.initial.resize(static_cast<std::size_t>(config.degrees.ranks()));
  machine::run_ranks(config.degrees.ranks(), [&](machine::World& world) {
    Trainer trainer(world, world.group(), world.device(), config, corpus);
    for (const collectives::Parameter* parameter : trainer.parameters())
      result.initial[static_cast<std::size_t>(world.rank())][parameter->name] =
          to_doubles(parameter->value);
    if (!save.empty()) trainer.save(save);
    for (int step = 0; step < steps; ++step) {
      trainer.forward_backward();
      const double loss = trainer.mean_loss();
      if (world.rank() == 0) result.losses.push_back(loss);
      trainer.reduce();
      trainer.update();
    }
  });
  return result;
}

TEST(Gpt2Weights, AShorterSequenceTakesTheFirstPositions) {
  const Folder folder;
  const std::string path = folder.path("gpt2.safetensors");
  const WeightsFile file;
  file.write(path);
  TrainingConfig shorter = training({}, path);
  shorter.model.sequence = 8;
  const Trained all = train(training({}, path), "", 0), some = train(shorter, "", 0);
  std::vector<double> first = all.initial[0].at("embedding.position.weight");
  first.resize(first.size() / 2);
  EXPECT_EQ(some.initial[0].at("embedding.position.weight"), first);
  shorter.model.sequence = 17;  // more than the file has
  EXPECT_THROW(train(shorter, "", 0), FileError);
}

// Locates each element of the checkpoint by rank, row and column.
TEST(Gpt2Weights, EachElementIsLoadedToItsPlace) {
  const Folder folder;
  const std::string path = folder.path("gpt2.safetensors");
  WeightsFile file;
  file.write(path);
  for (const int tp : {1, 2, 4}) {
    const Trained loaded = train(training({.tp = tp}, path), "", 0);
    const auto value = [&](const std::string& name, std::size_t row, std::size_t col,
                           std::size_t rows, std::size_t cols, bool by_rows) {
      const std::size_t part = (by_rows ? rows : cols) / static_cast<std::size_t>(tp);
      const std::size_t rank = (by_rows ? row : col) / part;
      (by_rows ? row : col) %= part;
      return loaded.initial[rank].at(name)[row * (by_rows ? cols : part) + col];
    };
    for (std::size_t in = 0; in < 8; ++in)
      for (std::size_t out = 0; out < 24; ++out) {
        const std::size_t part = out / 8, head = out % 8 / 2, place = out % 2;
        const std::size_t row = head * 6 + part * 2 + place;
        EXPECT_EQ(value("blocks.1.attention.qkv.weight", row, in, 24, 8, true),
                  file.at("h.1.attn.c_attn.weight").values[in * 24 + out]);
        EXPECT_EQ(value("blocks.1.attention.qkv.bias", row, 0, 24, 1, true),
                  file.at("h.1.attn.c_attn.bias").values[out]);
      }
    for (std::size_t in = 0; in < 8; ++in)
      for (std::size_t out = 0; out < 32; ++out) {
        EXPECT_EQ(value("blocks.0.mlp.fc1.weight", out, in, 32, 8, true),
                  file.at("h.0.mlp.c_fc.weight").values[in * 32 + out]);
        EXPECT_EQ(value("blocks.0.mlp.fc2.weight", in, out, 8, 32, false),
                  file.at("h.0.mlp.c_proj.weight").values[out * 8 + in]);
        EXPECT_EQ(value("embedding.token.weight", 200 + out, in, 256, 8, true),
                  file.at("wte.weight").values[(200 + out) * 8 + in]);
        if (out >= 8) continue;
        EXPECT_EQ(value("blocks.0.attention.projection.weight", out, in, 8, 8, false),
                  file.at("h.0.attn.c_proj.weight").values[in * 8 + out]);
      }
    for (const auto& [ours, theirs] : std::map<std::string, std::string>{
             {"embedding.position.weight", "wpe.weight"},
             {"blocks.1.norm1.gain", "h.1.ln_1.weight"},
             {"blocks.1.norm1.bias", "h.1.ln_1.bias"},
             {"blocks.0.norm2.gain", "h.0.ln_2.weight"},
             {"blocks.0.norm2.bias", "h.0.ln_2.bias"},
             {"blocks.0.attention.projection.bias", "h.0.attn.c_proj.bias"},
             {"blocks.1.mlp.fc2.bias", "h.1.mlp.c_proj.bias"},
             {"head.norm.gain", "ln_f.weight"},
             {"head.norm.bias", "ln_f.bias"}})
      for (const Values& rank : loaded.initial) {
        const std::vector<float>& wanted = file.at(theirs).values;
        EXPECT_EQ(rank.at(ours), std::vector<double>(wanted.begin(), wanted.end())) << ours;
      }
  }
}

// At all degrees, the model saves the same bytes, and trains from them as from memory.
TEST(Gpt2Weights, SavedFilesAreEqualAtAllDegrees) {
  const Folder folder;
  const std::string path = folder.path("gpt2.safetensors");
  const Trained alone = train(training({}), path);
  EXPECT_EQ(alone.losses.size(), 3u);
  EXPECT_NE(alone.losses[0], alone.losses[1]);
  const std::string bytes = read_bytes(path);
  for (const machine::Degrees degrees :
       {machine::Degrees{}, machine::Degrees{.tp = 2}, machine::Degrees{.pp = 2},
        machine::Degrees{.tp = 2, .dp = 2, .pp = 2}}) {
    const Trained memory = train(training(degrees), folder.path("again"));
    EXPECT_TRUE(read_bytes(folder.path("again")) == bytes);
    TrainingConfig config = training(degrees, path);
    config.seed = 99;  // affects only the data
    const Trained other = train(config, "", 0);
    config.seed = training({}).seed;
    const Trained loaded = train(config);
    EXPECT_EQ(loaded.losses, memory.losses);
    EXPECT_EQ(loaded.initial, memory.initial);
    EXPECT_EQ(other.initial, memory.initial);
  }
}

TEST(Gpt2Weights, PaddingRowsAreZeroAndNotSaved) {
  const Folder folder;
  const std::string path = folder.path("gpt2.safetensors"), again = folder.path("again");
  WeightsFile file(251);
  file.write(path);
  for (const int tp : {1, 2}) {
    const Trained loaded = train(training({.tp = tp}, path), again, 0);
    const std::vector<double>& table = loaded.initial.back().at("embedding.token.weight");
    for (std::size_t i = table.size() - 5 * 8; i < table.size(); ++i) EXPECT_EQ(table[i], 0) << i;
    EXPECT_EQ(table[table.size() - 5 * 8 - 1], file.at("wte.weight").values.back());
    EXPECT_TRUE(read_bytes(again) == read_bytes(path));
  }
  WeightsFile(128).write(path);
  expect_words(refusal([&] { train(training({}, path)); }),
               {"'wte.weight' is [128, 8]", "[256, 8]", "as few as 129 rows"});
  train(training({.tp = 2}, path));  // padded to a multiple of 256
  WeightsFile(257).write(path);
  expect_words(refusal([&] { train(training({}, path)); }), {"'wte.weight' is [257, 8]"});
}

TEST(Gpt2Weights, ReadsNarrowTypesAndExtraTensors) {
  const Folder folder;
  const std::string path = folder.path("gpt2.safetensors");
  WeightsFile file(256, "transformer.");
  file.at("transformer.h.0.ln_1.bias").entry.dtype = "F16";
  file.at("transformer.h.0.ln_2.bias").entry.dtype = "BF16";
  file.at("transformer.h.0.ln_1.bias").values[3] = 0.1f;
  file.at("transformer.h.0.ln_2.bias").values[3] = 0.1f;
  file.add("transformer.h.0.attn.bias", {1, 1, 16, 16});
  file.add("transformer.h.1.attn.masked_bias", {});
  file.add("lm_head.weight", {256, 8});
  file.tensors.back().values = file.at("transformer.wte.weight").values;
  file.write(path);
  const Values values = train(training({}, path), "", 0).initial[0];
  EXPECT_EQ(values.at("blocks.0.norm1.bias")[3], 0.0999755859375);  // 1638 x 2^-14
  EXPECT_EQ(values.at("blocks.0.norm2.bias")[3], 0.10009765625);    // 205 x 2^-11
  TrainingConfig narrow = training({}, path);
  narrow.precision.dtype = Dtype::bfloat16;
  EXPECT_EQ(train(narrow, folder.path("narrow"), 0).initial[0].at("blocks.0.norm1.bias")[3],
            0.10009765625);
  EXPECT_EQ(Safetensors(folder.path("narrow")).find("ln_f.bias")->dtype, "BF16");

  file.tensors.back().values[7] += 1;
  file.write(path);
  expect_words(refusal([&] { train(training({}, path)); }),
               {"'lm_head.weight' is not 'transformer.wte.weight'"});
}

TEST(Gpt2Weights, RejectsOtherModelsByTensorName) {
  const Folder folder;
  const std::string path = folder.path("gpt2.safetensors");
  struct Wrong {
    std::function<void(WeightsFile&)> make;
    std::initializer_list<std::string> says;
  };
  for (const auto& [make, says] : std::initializer_list<Wrong>{
           {[](WeightsFile& f) { f.at("h.1.ln_2.bias").entry.name = "h.1.ln2.bias"; },
            {"has no tensor 'h.1.ln_2.bias'", "'h.1.ln2.bias'"}},
           {[](WeightsFile& f) { f.tensors.pop_back(); }, {"has no tensor 'ln_f.bias'"}},
           {[](WeightsFile& f) { f.add("h.1.mlp.c_gate.bias", {8}); },
            {"'h.1.mlp.c_gate.bias' is not one of GPT-2's", "'h.1.mlp.c_"}},
           {[](WeightsFile& f) { f.add("h.2.ln_1.bias", {8}); },
            {"'h.2.ln_1.bias' belongs to block 2", "the model has 2"}},
           {[](WeightsFile& f) { f.add("h.99999999999.ln_1.bias", {8}); }, {"99999999999"}},
           {[](WeightsFile& f) { f.add(std::string(3000, 'x'), {8}); }, {"xxx"}},
           {[](WeightsFile& f) {
              f.at("h.0.attn.c_attn.weight").entry.shape = {24, 8};
            },
            {"'h.0.attn.c_attn.weight' is [24, 8]", "expected [8, 24]"}},
           {[](WeightsFile& f) {
              f.at("wpe.weight").entry.shape = {8, 16};
            },
            {"'wpe.weight' is [8, 16]", "expected [16, 8]"}},
           {[](WeightsFile& f) { f.at("wte.weight").entry.shape = {256 * 8}; },
            {"'wte.weight' is [2048]", "expected [256, 8]"}},
           {[](WeightsFile& f) {
              f.at("ln_f.bias").entry = {"ln_f.bias", "I32", {0}};
              f.at("ln_f.bias").values.clear();
            },
            {"dtype of tensor 'ln_f.bias' is I32", "F16, BF16"}},
       }) {
    WeightsFile file;
    make(file);
    file.write(path);
    for (const int tp : {1, 2})
      expect_words(refusal([&] { train(training({.tp = tp}, path)); }), says);
  }
}

// Only rank 0 writes. The other ranks must not wait for it, and must report its failure.
TEST(Gpt2Weights, AllRanksReportAFailedSave) {
  const Folder folder;
  const std::string path = folder.path("no/gpt2.safetensors");
  const Corpus corpus = Corpus::generated(3);
  std::vector<std::string> heard(2);
  machine::run_ranks(2, [&](machine::World& world) {
    Trainer trainer(world, world.group(), world.device(), training({.tp = 2}), corpus);
    heard[static_cast<std::size_t>(world.rank())] = refusal([&] { trainer.save(path); });
  });
  expect_words(heard[0], {"cannot write to", path});
  EXPECT_EQ(heard[1], heard[0]);
}

}  // namespace
}  // namespace suite

#include "zero/checkpoint/checkpoint.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <bit>
#include <filesystem>
#include <fstream>

#include "machine/base/checksum.h"
#include "zero/checkpoint/checkpoint_index.h"
#include "zero/checkpoint/saving.h"
#include "zero/offload/streamed_optimizer.h"
#include "zero/optimizers/loss_scale.h"
#include "zero/testing/model_case.h"

namespace zero {
namespace {

using machine::Category;
using machine::Dtype;
using machine::Tensor;
using testing::RankModel;

// A fixture with a folder per test, which is removed afterwards.
class CheckpointFiles : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder); }
  void TearDown() override { std::filesystem::remove_all(folder); }

  static std::string read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static void write(const std::string& path, const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
  }
  std::string part(std::size_t rank, const std::string& save = first) const {
    return folder + "/" + part_name(save, rank, 2);
  }

  Tensor counted(std::int64_t elements, double from) const {
    std::vector<double> numbers;
    for (std::int64_t i = 0; i < elements; ++i) numbers.push_back(from + static_cast<double>(i));
    const Tensor made(*device, Dtype::float32, {elements}, Category::buffers);
    from_doubles(made, numbers);
    return made;
  }
  // Rank 0 stores rows 0 to 2 of a [6, 4], rank 1 rows 3 to 5. Element i is `from` + i.
  static Piece rows(std::int64_t begin, std::int64_t count) {
    return {"a", {6, 4}, {begin, 0}, {count, 4}, {0, 4 * count}};
  }
  void save_two(const std::string& save, double from, const Reached& reached = {}) const {
    std::vector<std::string> parts;
    for (int rank = 0; rank < 2; ++rank) {
      PartWriter writer(folder, save, rank, 2, reached);
      writer.add(rows(3 * rank, 3), counted(12, from + 12 * rank));
      parts.push_back(writer.finish());
    }
    commit(folder, save, parts, {.numbers = {{"steps", 7}}}, reached);
  }
  std::vector<double> load(const Piece& piece) const {
    const Tensor into = counted(piece.size(), -100);
    Checkpoint(folder).read(piece, into);
    return to_doubles(into);
  }
  // Returns the message of loading. Errors are one line.
  std::string refusal() const {
    try {
      load(rows(0, 6));
    } catch (const CheckpointError& error) {
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
      return error.what();
    }
    return "it was loaded";
  }
  void expect_refusal(const std::string& path, const std::string& why) const {
    const std::string text = refusal();
    EXPECT_TRUE(text.starts_with(path + ": ") && text.find(why) != std::string::npos)
        << text << "\n  wanted: " << path << ": … " << why;
  }

  static inline const std::string first = "0123456789abcdef", second = "fedcba9876543210";
  const std::string folder = ::testing::TempDir() + "/checkpoint-" + std::to_string(::getpid());
  std::unique_ptr<machine::Device> device = machine::make_host_device();
};

TEST_F(CheckpointFiles, AnyBoxAndRangeIsRead) {
  save_two(first, 0);
  EXPECT_EQ(load({"a", {6, 4}, {1, 1}, {4, 2}, {1, 6}}), (std::vector<double>{6, 9, 10, 13, 14}));
  EXPECT_EQ(load({"a", {6, 4}, {0, 0}, {6, 4}, {10, 14}}), (std::vector<double>{10, 11, 12, 13}));
  EXPECT_EQ(load({"a", {6, 4}, {2, 3}, {2, 1}, {0, 2}}), (std::vector<double>{11, 15}));
  EXPECT_TRUE(load({"a", {6, 4}, {0, 0}, {6, 4}, {5, 5}}).empty());
  EXPECT_EQ(Checkpoint(folder).number("steps"), 7u);
}

TEST_F(CheckpointFiles, TornSetsAreRejectedByFileName) {
  const std::string index = folder + "/index.json";
  expect_refusal(index, "No such file");
  save_two(first, 0);
  const std::string good = read(part(1)), good_index = read(index);
  const auto restore = [&] {
    write(part(1), good);
    write(index, good_index);
    EXPECT_EQ(refusal(), "it was loaded");
  };

  std::filesystem::remove(part(1));
  expect_refusal(part(1), "No such file");
  restore();
  write(part(1), good.substr(0, good.size() - 1));
  expect_refusal(part(1), "not the 112 that were written");
  restore();
  write(part(1), good + "x");
  expect_refusal(part(1), "it has 113 bytes");
  restore();
  write(part(1), part_header(second, 1, 2) + good.substr(part_header_bytes));
  expect_refusal(part(1), "it is not the part of rank 1 of save " + first);
  restore();
  write(part(1), read(part(0)));  // another rank's
  expect_refusal(part(1), "it is not the part of rank 1");
  restore();
  for (std::size_t at = part_header_bytes; at < good.size(); ++at) {
    std::string flipped = good;
    flipped[at] = static_cast<char>(flipped[at] ^ 16);
    write(part(1), flipped);
    expect_refusal(part(1), "tensor a at 64 is not what was written");
  }
  restore();
  for (std::size_t at = 0; at < good_index.size(); at += 7) {
    std::string flipped = good_index;
    flipped[at] = static_cast<char>(flipped[at] ^ 1);
    write(index, flipped);
    expect_refusal(index, "");
  }
  write(index, good_index.substr(0, good_index.size() / 2));
  expect_refusal(index, "its checksum is wrong");
  write(index, "");
  expect_refusal(index, "its checksum is wrong");
}

// The edited indices have correct checksums.
TEST_F(CheckpointFiles, HostileIndicesAreRejected) {
  save_two(first, 0);
  const std::string index = folder + "/index.json", good = read(index);
  const auto edited = [&](const std::string& from, const std::string& to) {
    std::string text = good.substr(0, good.rfind("crc32c "));
    const std::size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    write(index, text + fmt::format("crc32c {:08x}\n", crc32c(text.data(), text.size())));
  };
  for (const auto& [from, to, why] : std::vector<std::array<std::string, 3>>{
           {"\"offset\":64", "\"offset\":9223372036854775807", "are not inside a file of 112"},
           {"\"offset\":64", "\"offset\":-8", "is not a number"},
           {"\"offset\":64", "\"offset\":1e3", "is not a number"},
           {"\"bytes\":112", "\"bytes\":18446744073709551615", "is not a number"},
           {"\"global\":[6,4]", "\"global\":[1152921504606846976,16]", "more than 2^60 elements"},
           {"\"global\":[6,4]", "\"global\":[2,4]", "are not inside an extent of 2"},
           {"\"range\":[0,12]", "\"range\":[0,4611686018427387904]", "of a box of 12"},
           {"\"range\":[0,12]", "\"range\":[12,0]", "of a box of 12"},
           {"\"begin\":[0,0]", "\"begin\":[0,0,0]", "dimensions"},
           {"\"float\"", "\"floaty\"", "'floaty' is not a dtype"},
           {first, "../../../etc/pass", "its save has an invalid name"},
           {"\"name\":\"a\"", "\"name\":7", "type"},
           {"\"parts\": [", "\"parts\": 1, \"more\": [", ""},
           {"\"parts\"", "\"party\"", "parts"},
           {"shardmark checkpoint 1", "shardmark checkpoint 2", "its format is"},
           {"\"steps\":7", "\"steps\":-7", "'steps' is not a number"},
           {"]}\n", std::string(100'000, '['), "parse error"}}) {
    edited(from, to);
    expect_refusal(index, why);
  }
  // Parameters that the checkpoint lacks.
  write(index, good);
  const auto says = [&](const Piece& piece, const std::string& why) {
    try {
      load(piece);
      ADD_FAILURE() << why;
    } catch (const CheckpointError& error) {
      EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
    }
  };
  says({"b", {6, 4}, {0, 0}, {6, 4}, {0, 24}}, "it has no tensor b; the nearest is a");
  says({"a", {4, 6}, {0, 0}, {4, 6}, {0, 24}}, "tensor a is [6, 4] of float, not [4, 6] of float");
  EXPECT_THROW(Checkpoint(folder).number("step"), CheckpointError);
  PartWriter writer(folder, second, 0, 1);
  writer.add(rows(0, 3), counted(12, 0));
  commit(folder, second, {writer.finish()}, {});
  says(rows(2, 2), "no file stores element 4 of 8 of tensor a");
}

// The process is killed at each point. Its files stay as written.
TEST_F(CheckpointFiles, AKilledSaveLeavesACompleteCheckpoint) {
  std::vector<std::string> points;
  save_two(first, 0, [&](std::string_view point) { points.emplace_back(point); });
  ASSERT_EQ(points.size(), 10u);  // three per part, four for the index
  for (std::size_t kill = 0; kill < points.size(); ++kill) {
    std::filesystem::remove_all(folder);
    std::filesystem::create_directories(folder);
    save_two(first, 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      std::size_t reached = 0;
      save_two(second, 1000, [&](std::string_view) {
        if (reached++ == kill) ::_exit(9);
      });
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 9) << points[kill];
    const bool is_new = points[kill] == "index renamed" || points[kill] == "others removed";
    EXPECT_EQ(load(rows(0, 6)), to_doubles(counted(24, is_new ? 1000 : 0))) << points[kill];
    // The next save is not affected, and leaves only its own files.
    save_two("00000000000000aa", 2000);
    EXPECT_EQ(load(rows(0, 6)), to_doubles(counted(24, 2000))) << points[kill];
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 3) << points[kill];
  }
}

// ---- Checkpoints of a training, over ranks

// A training with a bucket per parameter, so that a rank has several pieces.
struct SavedTraining {
  RankModel model;
  GradientPlan plan;
  FlatStates states;
  std::unique_ptr<Step> step;

  SavedTraining(machine::World& world, machine::Degrees degrees, int stage = 1,
                const StateOptions& offload = {}, Dtype dtype = Dtype::bfloat16)
      : model(world, degrees),
        plan(gradient_plan(model.list(), dtype, model.grid, 48)),
        states(world.device(), plan, model.list(), {.reduce_bucket_size = 1}) {
    model.set_values();
    StepOptions options{.all_reduce = "direct"};
    options.offload_optimizer = offload;
    step = make_step(stage, states, plan, model.communicators(), options);
  }
  void train(int begin, int end) {
    for (int i = begin; i < end; ++i) {
      model.set_gradients(i);
      step->step();
    }
  }
  std::vector<FlatPiece> pieces(Range range) {
    return flat_pieces(model.list(), states.layout().offsets, model.grid.size(machine::Axis::tp),
                       model.grid.coordinate(machine::Axis::tp), range);
  }
  std::int64_t steps() { return step->optimizer().steps(); }
  void save(machine::World& world, const std::string& folder) {
    zero::save(
        world, world.group(), folder, {.numbers = {{"steps", static_cast<std::uint64_t>(steps())}}},
        [&](PieceSink& writer) {
          step->optimizer().visit(
              false, [&](Range range, const RangeStates& of) { writer.add(pieces(range), of); });
        });
  }
  // Reads all values, including the shards of other ranks.
  void load(const std::string& folder) {
    const Checkpoint checkpoint(folder);
    step->optimizer().set_steps(static_cast<std::int64_t>(checkpoint.number("steps")));
    step->optimizer().visit(
        true, [&](Range range, const RangeStates& of) { checkpoint.read(pieces(range), of); });
    checkpoint.read(pieces({0, states.layout().elements}),
                    {states.values(), states.values(), {}, {}});
  }
  std::vector<std::uint64_t> hashes() {
    // States are grouped by kind, regardless of their ranges.
    std::vector<double> master, first, second;
    const auto append = [](std::vector<double>& to, const Tensor& tensor) {
      const std::vector<double> numbers = to_doubles(tensor);
      to.insert(to.end(), numbers.begin(), numbers.end());
    };
    step->optimizer().visit(false, [&](Range, const RangeStates& of) {
      append(master, of.master);
      append(first, of.first_moment);
      append(second, of.second_moment);
    });
    std::vector<std::uint64_t> all{hash(states.values())};
    for (const auto& numbers : {master, first, second})
      all.push_back(wide_checksum(numbers.data(), numbers.size() * sizeof(double)));
    return all;
  }
  void spoil() {
    machine::Kernels& kernels = states.device().stream().kernels();
    kernels.fill(states.values(), 0);
    step->optimizer().visit(true, [&](Range, const RangeStates& of) {
      for (const Tensor& tensor : {of.master, of.first_moment, of.second_moment})
        kernels.fill(tensor, 0);
    });
  }
};

using CheckpointOfRanks = CheckpointFiles;

TEST_F(CheckpointOfRanks, ATrainingContinuesWithTheSameBits) {
  for (const machine::Degrees degrees : {machine::Degrees{},
                                         {.dp = 2},
                                         {.tp = 2, .dp = 2},
                                         {.tp = 3},
                                         {.tp = 2, .dp = 1, .pp = 2}}) {
    machine::run_ranks(degrees.tp * degrees.dp * degrees.pp, [&](machine::World& world) {
      const int stage = degrees.tp == 3 ? 0 : 1;
      SavedTraining whole(world, degrees, stage), until(world, degrees, stage),
          from(world, degrees, stage);
      whole.train(0, 4);
      until.train(0, 2);
      until.save(world, folder);
      from.load(folder);
      EXPECT_EQ(from.hashes(), until.hashes());
      from.train(2, 4);
      EXPECT_EQ(from.hashes(), whole.hashes());
      EXPECT_EQ(from.steps(), 4);
    });
  }
}

// Tests every pair of places of the states, before the save and after the load.
TEST_F(CheckpointOfRanks, OffloadedStatesAreReadByAnyOptimizer) {
  std::vector<StateOptions> all(3);
  all[1].device = OffloadDevice::cpu;
  all[1].cpu.ratio = 0.6;
  if (IoRing::why_not().empty()) {
    all[2].device = OffloadDevice::nvme;
    all[2].nvme.swap.folder = folder;
    all[2].nvme.sub_group_size = 33;
  }
  machine::run_ranks(2, [&](machine::World& world) {
    const machine::Degrees degrees{.dp = 2};
    for (const Dtype dtype : {Dtype::bfloat16, Dtype::float32}) {
      SavedTraining whole(world, degrees, 1, {}, dtype);
      whole.train(0, 4);
      for (const StateOptions& a : all) {
        SavedTraining until(world, degrees, 1, a, dtype);
        until.train(0, 2);
        until.save(world, folder);
        for (const StateOptions& b : all) {
          SavedTraining from(world, degrees, 1, b, dtype);
          from.load(folder);
          EXPECT_EQ(from.hashes(), until.hashes());
          from.train(2, 4);
          EXPECT_EQ(from.hashes(), whole.hashes()) << name(a.device) << " to " << name(b.device);
        }
      }
    }
  });
}

TEST_F(CheckpointOfRanks, OtherDegreesReadTheSameElements) {
  const std::string other = folder + "/other";
  const std::vector<machine::Degrees> all = {{}, {.dp = 3}, {.tp = 3, .dp = 2}, {.tp = 2, .dp = 3}};
  const auto ranks = [](machine::Degrees degrees) { return degrees.tp * degrees.dp; };
  for (const machine::Degrees a : all) {
    std::vector<std::vector<std::uint64_t>> expected(static_cast<std::size_t>(ranks(a)));
    machine::run_ranks(ranks(a), [&](machine::World& world) {
      SavedTraining trained(world, a);
      trained.save(world, other);  // initial values, which are known
      trained.train(0, 2);
      trained.save(world, folder);
      expected[static_cast<std::size_t>(world.rank())] = trained.hashes();
    });
    for (const machine::Degrees b : all) {
      machine::run_ranks(ranks(b), [&](machine::World& world) {
        SavedTraining trained(world, b);
        trained.spoil();
        trained.load(other);
        for (const collectives::Parameter& p : trained.model.parameters) {
          std::vector<double> values;
          for (const std::int64_t index : trained.model.global_indices(p))
            values.push_back(testing::initial(p.name, index));
          EXPECT_EQ(to_doubles(p.value), values) << p.name;
        }
        trained.spoil();
        trained.load(folder);
        trained.save(world, folder + "/again");
      });
      machine::run_ranks(ranks(a), [&](machine::World& world) {
        SavedTraining trained(world, a);
        trained.spoil();
        trained.load(folder + "/again");
        EXPECT_EQ(trained.hashes(), expected[static_cast<std::size_t>(world.rank())]);
      });
    }
  }
}

TEST_F(CheckpointOfRanks, AFailureOnOneRankFailsOnAll) {
  machine::run_ranks(2, [&](machine::World& world) {
    SavedTraining trained(world, {.dp = 2});
    trained.save(world, folder);
    const auto before = Checkpoint(folder).number("steps");
    trained.train(0, 1);
    EXPECT_THROW(save(world, world.group(), folder, {.numbers = {{"steps", 99}}},
                      [&](PieceSink&) {
                        if (world.rank() == 1) throw CheckpointError("rank 1 has no more room");
                      }),
                 CheckpointError);
    EXPECT_EQ(Checkpoint(folder).number("steps"), before);
  });
}

TEST_F(CheckpointOfRanks, OffloadedStatesAndALossScaleContinue) {
  if (const std::string why = IoRing::why_not(); !why.empty()) GTEST_SKIP() << why;
  StateOptions options;
  options.device = OffloadDevice::nvme;
  options.nvme.swap.folder = folder;
  options.nvme.sub_group_size = 100;
  const Tensor values(*device, Dtype::bfloat16, {250}, Category::parameters);
  const Tensor gradient = counted(250, -99);
  const std::vector<std::uint8_t> mask(250, 1);
  LossScale scale(usual_options(LossScaling::megatron));
  for (const bool overflow : {false, true, false}) scale.update(overflow);
  device->stream().kernels().fill(values, 0.5);
  StreamedOptimizer before(AdamW{}, values, mask, *device, options);
  before.update(gradient, 1);
  PartWriter writer(folder, first, 0, 1);
  before.visit(false, [&](Range at, const RangeStates& states) {
    writer.add({{.piece = {"w", {250}, {0}, {250}, at}}}, states);
  });
  const LossScale::State state = scale.state();
  commit(folder, first, {writer.finish()},
         {.numbers = {{"steps", 1},
                      {"scale", std::bit_cast<std::uint64_t>(state.scale)},
                      {"patience", static_cast<std::uint64_t>(state.patience)},
                      {"clean", static_cast<std::uint64_t>(state.clean)}}});

  const Tensor others(*device, Dtype::bfloat16, {250}, Category::parameters);
  device->stream().kernels().fill(others, 0);
  options.nvme.sub_group_size = 77;
  StreamedOptimizer after(AdamW{}, others, mask, *device, options);
  const Checkpoint checkpoint(folder);
  after.visit(true, [&](Range at, const RangeStates& states) {
    checkpoint.read({{.piece = {"w", {250}, {0}, {250}, at}}}, states);
  });
  after.set_steps(static_cast<std::int64_t>(checkpoint.number("steps")));
  LossScale resumed(usual_options(LossScaling::megatron));
  resumed.restore({std::bit_cast<double>(checkpoint.number("scale")),
                   static_cast<int>(checkpoint.number("patience")),
                   static_cast<std::int64_t>(checkpoint.number("clean"))});
  EXPECT_EQ(resumed.state(), scale.state());
  EXPECT_THROW(resumed.restore({.scale = 0}), std::invalid_argument);
  for (int step = 0; step < 2; ++step) {
    before.update(gradient, 0.25);
    after.update(gradient, 0.25);
  }
  EXPECT_EQ(hash(values), hash(others));
}

}  // namespace
}  // namespace zero

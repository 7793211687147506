// Steps of ZeRO stage 3 with values in host memory and in a file.

#include "zero/offload/offload_param.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <limits>

#include "machine/base/error.h"
#include "zero/cost/cost.h"
#include "zero/stages/stage3.h"
#include "zero/testing/model_case.h"

namespace zero {
namespace {

using machine::Category;
using machine::Dtype;
using testing::RankModel;

SwapOptions swap_options() {
  return {.folder = ::testing::TempDir(), .io = {.block_size = 4096, .rank = 1}};
}

std::vector<StateOptions> states_of() {
  std::vector<StateOptions> all(2);
  all[1].device = OffloadDevice::cpu;
  all[1].cpu.piece_size = 50;
  if (!IoRing::why_not().empty()) return all;
  StateOptions& in_file = all.emplace_back();
  in_file.device = OffloadDevice::nvme;
  in_file.nvme.swap = swap_options();
  in_file.nvme.sub_group_size = 60;
  in_file.nvme.buffer_count = 3;
  return all;
}

// Values in slots of at most 50 elements, with the first 200 elements or none in host memory.
std::vector<ValueOptions> values_of() {
  std::vector<ValueOptions> all(1);
  all[0].device = OffloadDevice::cpu;
  if (!IoRing::why_not().empty()) return all;
  for (const int buffers : {1, 2}) {
    all.push_back({OffloadDevice::nvme, swap_options(), buffers, 50, buffers == 2 ? 200 : 0});
    all.back().swap.io.late_writes = buffers == 2;  // a buffer is free when its write is done
  }
  return all;
}

std::string text(Dtype dtype, const StateOptions& states, const ValueOptions& values) {
  return fmt::format("{}, states {}, values {} by {} buffers, {} elements on the host",
                     machine::name(dtype), name(states.device), name(values.device),
                     values.buffer_count, values.max_in_cpu);
}

// Every parameter is a part. A micro-batch uses the parts one by one, in reverse, and all at once.
struct AwayTraining {
  static constexpr int micro_batches = 2;
  RankModel model;
  GradientPlan plan;
  FlatStates states;
  StepOptions options;
  std::unique_ptr<Step> step;
  std::vector<double> seen;  // values at all uses

  AwayTraining(machine::World& world, Dtype dtype, StepOptions given)
      : model(world, {.dp = world.size()}),
        plan(gradient_plan(model.list(), dtype, model.grid, 48, {"stage0.down"})),
        states(world.device(), plan, model.list(),
               {.reduce_bucket_size = 90, .parts = parts(), .persistence_threshold = 7}),
        options(std::move(given)) {
    model.set_values();
    options.clip_norm = 0.25;
    options.stage3_prefetch_bucket_size = 300;
    step = make_step(3, states, plan, model.communicators(), options);
  }
  std::vector<int> parts() {
    std::vector<int> each;
    for (std::size_t i = 0; i < model.parameters.size(); ++i) each.push_back(static_cast<int>(i));
    return each;
  }
  Usage usage() {
    const std::vector<int> all = parts();
    std::vector<std::vector<int>> one_by_one;
    for (const int row : all) one_by_one.push_back({row});
    Usage usage = forward_and_backward(one_by_one, micro_batches);
    usage.uses.push_back(all);
    usage.begun = usage.ready = {all};
    return usage;
  }
  StepResult train(int seed, bool overflow = false) {
    for (int i = 0; i < micro_batches; ++i) {
      step->begin_micro_batch(i + 1 == micro_batches);
      std::vector<collectives::Parameter*> order = model.list();
      for (const bool back : {false, true}) {
        if (back) std::reverse(order.begin(), order.end());
        for (collectives::Parameter* each : order) {
          step->before_use({each});
          append(seen, each->value);
          step->after_use({each});
        }
      }
      step->before_use(model.list());
      step->before_gradients(model.list());
      set_gradients(seed * micro_batches + i);
      if (overflow && i == 1 && (!model.dp || model.dp->rank() + 1 == model.dp->size()))
        model.parameters[0].gradient.device().stream().kernels().fill(
            model.parameters[0].gradient, std::numeric_limits<double>::infinity());
      step->after_use(model.list());
      step->gradients_ready(model.list());
      step->end_micro_batch();
    }
    return step->step();
  }
  void set_gradients(int seed) {
    for (const collectives::Parameter& p : model.parameters) {
      if (!p.gradient) continue;  // frozen
      std::vector<double> numbers;
      for (std::int64_t i = 0; i < p.gradient.size(); ++i)
        numbers.push_back(
            testing::contribution(p.name, i, seed, model.dp ? model.dp->rank() : 0, 0, 0));
      from_doubles(p.gradient, numbers);
    }
  }
  std::vector<double> values() {
    std::vector<double> all;
    step->before_use(model.list());
    for (const collectives::Parameter& p : model.parameters) append(all, p.value);
    step->after_use(model.list());
    return all;
  }
  // Returns the states per element of the flat buffers, independent of the split for updates.
  std::map<std::int64_t, std::vector<double>> optimizer_states() {
    std::map<std::int64_t, std::vector<double>> all;
    step->optimizer().visit(false, [&](Range range, const RangeStates& of) {
      for (const machine::Tensor& state :
           {of.values, of.master, of.first_moment, of.second_moment}) {
        if (!state) continue;
        const std::vector<double> numbers = to_doubles(state);
        for (std::int64_t i = 0; i < range.size(); ++i)
          all[range.begin + i].push_back(numbers[static_cast<std::size_t>(i)]);
      }
    });
    return all;
  }
  void halve_values() {  // as an external change
    step->optimizer().visit(true, [](Range, const RangeStates& of) {
      of.values.device().stream().kernels().scale(of.values, 0.5, of.values);
    });
    step->optimizer().values_changed();
  }
  static void append(std::vector<double>& to, const machine::Tensor& tensor) {
    const std::vector<double> numbers = to_doubles(tensor);
    to.insert(to.end(), numbers.begin(), numbers.end());
  }
};

TEST(OffloadParam, GivesTheSameBits) {
  for (const int dp : {1, 3}) {
    machine::run_ranks(dp, [&](machine::World& world) {
      for (const Dtype dtype : {Dtype::float16, Dtype::float32}) {
        if (dp == 1 && dtype == Dtype::float32) continue;
        AwayTraining beside(world, dtype, {.overlap_comm = true});
        std::vector<std::unique_ptr<AwayTraining>> others;
        std::vector<std::string> where;
        for (const StateOptions& states : states_of()) {
          for (const ValueOptions& values : values_of()) {
            StepOptions options{.overlap_comm = values.buffer_count != 2};
            options.poison_freed = true;
            options.offload_optimizer = states;
            options.offload_param = values;
            others.push_back(std::make_unique<AwayTraining>(world, dtype, options));
            where.push_back(text(dtype, states, values));
          }
        }
        for (int i = 0; i < 4; ++i) {
          const bool overflow = i == 2;
          if (i == 3) {
            beside.halve_values();
            for (const auto& other : others) other->halve_values();
          }
          EXPECT_EQ(beside.train(i, overflow).updated, !overflow);
          const auto values = beside.values();
          const auto states = beside.optimizer_states();
          for (std::size_t j = 0; j < others.size(); ++j) {
            EXPECT_EQ(others[j]->train(i, overflow).updated, !overflow);
            EXPECT_EQ(others[j]->values(), values) << where[j] << ", step " << i;
            EXPECT_EQ(others[j]->optimizer_states(), states) << where[j] << ", step " << i;
            EXPECT_EQ(others[j]->seen, beside.seen) << where[j] << ", step " << i;
          }
        }
      }
    });
  }
}

TEST(OffloadParam, BytesMatchTheFormulas) {
  for (const int dp : {1, 2}) {
    machine::run_ranks(dp, [dp](machine::World& world) {
      const auto host = machine::make_host_device();
      for (const Dtype dtype : {Dtype::bfloat16, Dtype::float64}) {
        if (dp == 1 && dtype == Dtype::float64) continue;
        for (const StateOptions& states : states_of()) {
          for (const ValueOptions& values : values_of()) {
            const std::string where = text(dtype, states, values);
            machine::Ledger& ledger = world.device().ledger();
            constexpr Category categories[] = {Category::parameters, Category::gradients,
                                               Category::optimizer};
            std::vector<std::size_t> before;
            for (const Category category : categories) before.push_back(ledger.current(category));
            const std::size_t buffers = ledger.current(Category::buffers);
            StepOptions options;
            options.offload_optimizer = states;
            options.offload_param = values;
            options.offload_optimizer.host = host.get();
            AwayTraining trained(world, dtype, options);
            const Layout& layout = trained.states.layout();
            const ExpectedMemory memory =
                expected_memory(3, trained.plan, layout, AdamW{}, trained.options, trained.usage());
            EXPECT_EQ(ledger.current(Category::buffers) - buffers, memory.buffers) << where;
            for (int i = 0; i < 2; ++i) trained.train(i);  // then the order of uses is known
            const OffloadTraffic moved = trained.step->moved();
            ledger.reset_peaks();
            host->ledger().reset_peaks();
            trained.train(2);
            const std::size_t expected[] = {memory.parameters, memory.gradients, memory.optimizer};
            for (std::size_t i = 0; i < before.size(); ++i)
              EXPECT_EQ(ledger.peak(categories[i]) - before[i], expected[i])
                  << where << ", " << name(categories[i]);
            EXPECT_EQ(host->ledger().peak(Category::parameters), memory.host_parameters) << where;
            EXPECT_EQ(host->ledger().peak(Category::optimizer), memory.host_optimizer) << where;
            EXPECT_EQ(host->ledger().peak(Category::buffers), memory.host_buffers) << where;
            EXPECT_EQ(trained.step->moved() - moved,
                      expected_offload_traffic(3, trained.plan, layout, AdamW{}, trained.options,
                                               trained.usage()))
                << where;
          }
        }
      }
    });
  }
}

// Buckets of two ranks: shards of 128 and of 64 elements, which are gathered, a persistent shard of
// 64, and a frozen shard of 128.
Layout of_four_buckets() {
  Layout layout;
  layout.shards = 2;
  layout.bucket_of = {0, 1, 2, 3};
  const auto add = [&](std::int64_t elements, bool persistent, bool frozen) {
    Bucket bucket;
    bucket.range = {layout.value_elements, layout.value_elements + elements};
    bucket.rows = {static_cast<int>(layout.buckets.size())};
    bucket.persistent = persistent;
    bucket.frozen = frozen;
    bucket.shards = layout.shards;
    bucket.shards_begin = layout.own_value_elements;
    layout.value_elements += elements;
    layout.own_value_elements += elements / layout.shards;
    if (!frozen) layout.elements += elements;
    if (!frozen) layout.own_elements += elements / layout.shards;
    layout.buckets.push_back(bucket);
  };
  add(256, false, false);
  add(128, false, false);
  add(128, true, false);
  add(256, false, true);
  return layout;
}

TEST(OffloadParam, CostsByHand) {
  GradientPlan plan;
  plan.dp = 2;
  plan.value_dtype = Dtype::bfloat16;
  plan.gradient_dtype = Dtype::float32;
  plan.rows.resize(4);
  plan.rows[3].frozen = true;
  const Layout layout = of_four_buckets();
  Usage usage{.micro_batches = 3, .uses = {{0}, {1}, {2}, {3}, {0}}};
  usage.begun = usage.ready = {{0, 1, 2, 3}};
  StepOptions options;
  options.offload_param.device = OffloadDevice::cpu;
  const auto memory = [&] { return expected_memory(3, plan, layout, AdamW{}, options, usage); };
  const auto traffic = [&] {
    return expected_offload_traffic(3, plan, layout, AdamW{}, options, usage);
  };
  EXPECT_EQ(memory().host_parameters, (128u + 64 + 128) * 2);
  EXPECT_EQ(memory().optimizer, (128u + 64 + 64) * 12);
  // In addition to the mask and the longest slot, the buffers hold the norm's double, its sum and
  // that of two ranks.
  const std::size_t without = memory().buffers - (128u + 64 + 64) - 128u * 2;
  options.offload_param.device = OffloadDevice::none;
  EXPECT_EQ(memory().buffers, without + (128 + 64 + 64));
  EXPECT_EQ(memory().host_parameters, 0u);
  EXPECT_EQ(traffic(), OffloadTraffic{});
  const std::size_t with_shards = memory().parameters;
  options.offload_param.device = OffloadDevice::cpu;
  EXPECT_EQ(with_shards - memory().parameters, (128u + 64 + 128) * 2);
  const std::size_t gathers = 3u * (2 * 128 + 64 + 128) * 2;
  EXPECT_EQ(traffic(), (OffloadTraffic{.down = (128 + 64) * 2, .up = gathers}));
  plan.value_dtype = Dtype::float32;
  EXPECT_EQ(traffic(),
            (OffloadTraffic{.down = (128 + 64) * 4, .up = 2 * gathers + (128 + 64) * 4}));

  // If 200 elements may be in host memory, the second shard fits in addition to the first. The
  // frozen shard does not, and is split in three.
  plan.value_dtype = Dtype::bfloat16;
  options.offload_param = {OffloadDevice::nvme, {}, 2, 50, 200};
  EXPECT_EQ(memory().host_parameters, (128u + 64) * 2);
  EXPECT_EQ(memory().host_buffers, 2u * (4096 + 4096));
  EXPECT_EQ(traffic(),
            (OffloadTraffic{.down = (128 + 64) * 2, .up = gathers, .nvme_read = 3 * 3 * 4096}));
  options.offload_param.max_in_cpu = 0;
  EXPECT_EQ(memory().host_parameters, 0u);
  EXPECT_EQ(traffic(), (OffloadTraffic{.down = (128 + 64) * 2,
                                       .up = gathers,
                                       .nvme_read = 3 * (2 * 3 + 2 + 3) * 4096,
                                       .nvme_written = (3 + 2) * 4096}));
  options.offload_optimizer.device = OffloadDevice::cpu;
  EXPECT_EQ(traffic(), (OffloadTraffic{.down = (128 + 64 + 64) * 4,
                                       .up = gathers + 64 * 2,
                                       .nvme_read = 3 * (2 * 3 + 2 + 3) * 4096,
                                       .nvme_written = (3 + 2) * 4096}));
  options.offload_optimizer.device = OffloadDevice::nvme;
  EXPECT_EQ(traffic().down, (128u + 64 + 64) * 4);  // only the persistent values move up
  EXPECT_EQ(traffic().up, gathers + 64 * 2);
  plan.value_dtype = Dtype::float32;  // float values are read for the update
  EXPECT_EQ(traffic().down, (128u + 64 + 64) * 4 + 64 * 4);
  EXPECT_EQ(traffic().nvme_written - traffic().nvme_read + (3u * (2 * 3 + 2 + 3) + 3 + 2) * 4096,
            (3u + 2) * 4096);
}

TEST(OffloadParam, ReadsAheadIntoEveryBuffer) {
  if (const std::string why = IoRing::why_not(); !why.empty()) GTEST_SKIP() << why;
  const auto device = machine::make_host_device();
  OffloadedValues values(of_four_buckets(), {OffloadDevice::nvme, swap_options(), 2, 1000, 0},
                         Dtype::float32, *device, *device);
  const auto shard = [&](std::int64_t size, double value) {
    const machine::Tensor made(*device, Dtype::float32, {size}, Category::parameters);
    device->stream().kernels().fill(made, value);
    return made;
  };
  for (const int bucket : {0, 1, 3}) values.put(bucket, shard(bucket == 1 ? 64 : 128, bucket + 1));
  const auto reads = [&] { return values.moved().nvme_read / 4096; };
  const auto bring = [&](int bucket) {
    const machine::Tensor to = shard(bucket == 1 ? 64 : 128, 0);
    values.bring(bucket, to)();
    EXPECT_EQ(hash(to), hash(shard(to.size(), bucket + 1))) << bucket;
  };
  EXPECT_EQ(reads(), 0u);
  values.expect({0, 1, 3, 3, 0});
  EXPECT_EQ(reads(), 2u);
  bring(0);
  EXPECT_EQ(reads(), 3u);
  bring(1);  // a pending read is not repeated
  EXPECT_EQ(reads(), 3u);
  bring(3);
  EXPECT_EQ(reads(), 5u);
  bring(1);  // not the expected order
  EXPECT_EQ(reads(), 6u);
  bring(0);
  EXPECT_EQ(reads(), 7u);
}

class OffloadParamFile : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = IoRing::why_not(); !why.empty()) GTEST_SKIP() << why;
  }
  // Returns the error of a step after `treat` has damaged its file of values. Optimizers are on the
  // device.
  static std::string error_after(const std::function<void(int descriptor)>& treat) {
    std::string said;
    machine::run_ranks(1, [&](machine::World& world) {
      StepOptions options;
      options.offload_param = {OffloadDevice::nvme, swap_options(), 2, 50, 0};
      AwayTraining trained(world, Dtype::bfloat16, options);
      trained.train(0);
      auto& stage3 = dynamic_cast<Stage3&>(*trained.step);
      treat(stage3.offloaded_values()->swap_file()->descriptor());
      try {
        trained.train(1);
      } catch (const machine::MachineError& error) {
        said = error.what();
      }
    });
    return said;
  }
};

TEST_F(OffloadParamFile, AWrongByteIsNeverUsed) {
  for (const off_t at : {0, 4097}) {
    const std::string said = error_after([&](int file) {
      ASSERT_EQ(::fcntl(file, F_SETFL, ::fcntl(file, F_GETFL) & ~O_DIRECT), 0);
      unsigned char byte = 0;
      ASSERT_EQ(::pread(file, &byte, 1, at), 1);
      byte ^= 4;
      ASSERT_EQ(::pwrite(file, &byte, 1, at), 1);
    });
    EXPECT_NE(said.find(fmt::format("{} of rank 1: the block at {} is not what was written there",
                                    ::testing::TempDir(), at / 4096 * 4096)),
              std::string::npos)
        << said;
  }
}

TEST_F(OffloadParamFile, AShortFileIsNeverUsed) {
  const std::string said = error_after([](int file) { ASSERT_EQ(::ftruncate(file, 4096), 0); });
  EXPECT_NE(said.find("of rank 1"), std::string::npos) << said;
  EXPECT_NE(said.find(::testing::TempDir()), std::string::npos) << said;
}

TEST_F(OffloadParamFile, LeavesNothingAndNamesAMissingFolder) {
  const std::string folder = ::testing::TempDir() + "/values";
  std::filesystem::create_directory(folder);
  machine::run_ranks(1, [&](machine::World& world) {
    StepOptions options;
    options.offload_param = {OffloadDevice::nvme, swap_options(), 2, 50, 0};
    options.offload_param.swap.folder = folder;
    AwayTraining trained(world, Dtype::float32, options);
    trained.train(0);
    EXPECT_TRUE(std::filesystem::is_empty(folder));
    std::filesystem::remove(folder);
    trained.train(1);  // the file is unnamed and needs no folder
    try {
      const AwayTraining none(world, Dtype::float32, options);
      FAIL();
    } catch (const machine::MachineError& error) {
      EXPECT_NE(std::string(error.what()).find(folder), std::string::npos) << error.what();
    }
  });
}

TEST(OffloadParam, RejectsIncompatibleOptions) {
  const auto refusal = [](const ValueOptions& values, int stage, const StateOptions& states) {
    try {
      check(values, stage, states);
    } catch (const std::invalid_argument& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  ValueOptions values{.device = OffloadDevice::cpu};
  StateOptions states;
  EXPECT_EQ(refusal(values, 3, states), "");
  EXPECT_EQ(refusal({}, 2, states), "");
  EXPECT_EQ(refusal(values, 2, states),
            "offload_param cpu with stage 2: only stage 3 shards the values");
  states.device = OffloadDevice::cpu;
  states.cpu.ratio = 0.5;
  EXPECT_NE(refusal(values, 3, states).find("ratio 0.5"), std::string::npos);
  states.cpu = {.delayed_update = true};
  EXPECT_NE(refusal(values, 3, states).find("delayed_update"), std::string::npos);
  values.buffer_count = 0;
  EXPECT_EQ(refusal(values, 3, {}), "offload_param: buffer_count is 0; expected 1 or more");
  EXPECT_THROW(find_offload_device("nvm", "offload_param"), std::invalid_argument);
}

// Bucket 0 is prefetched while 1 is used, before the second use of 2. This is not the order of
// uses.
TEST(OffloadParam, FetchesInTheOrderOfUsesAndPrefetches) {
  const Uses uses = {{0}, {1}, {2}, {2}, {1}, {0}};
  const auto ahead = prefetches(uses, {10, 10, 10}, 20, 30);
  EXPECT_EQ(fetches(uses, ahead), (std::vector{0, 1, 2, 0, 1, 2}));
  EXPECT_EQ(fetches({{0}, {1}, {0, 2}}, {{2}, {}, {}}), (std::vector{0, 2, 1, 0}));
}

}  // namespace
}  // namespace zero

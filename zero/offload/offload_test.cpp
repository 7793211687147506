// Steps of every ZeRO stage with the optimizer's states in host memory and in a file.

#include "zero/offload/offload.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <limits>

#include "machine/base/error.h"
#include "zero/cost/cost.h"
#include "zero/testing/far_device.h"
#include "zero/testing/model_case.h"

namespace zero {
namespace {

using machine::Category;
using machine::Dtype;
using testing::RankModel;

constexpr double too_large = std::numeric_limits<double>::infinity();

StateOptions on_host(double ratio, bool delayed = false) {
  StateOptions options;
  options.device = OffloadDevice::cpu;
  options.cpu = {.piece_size = 50, .ratio = ratio, .delayed_update = delayed};
  return options;
}
StateOptions in_file() {
  StateOptions options;
  options.device = OffloadDevice::nvme;
  options.nvme.swap = {.folder = ::testing::TempDir(), .io = {.block_size = 4096}};
  options.nvme.sub_group_size = 60;
  options.nvme.buffer_count = 3;
  return options;
}
std::vector<StateOptions> offloads() {
  std::vector<StateOptions> all = {on_host(1), on_host(0.3)};
  if (IoRing::why_not().empty()) all.push_back(in_file());
  return all;
}

// A training with one or two parameters per bucket, so that a rank owns several ranges.
struct OffloadedTraining {
  RankModel model;
  GradientPlan plan;
  FlatStates states;
  std::unique_ptr<Step> step;

  OffloadedTraining(machine::World& world, int stage, Dtype dtype, const StateOptions& offload)
      : model(world, {.dp = world.size()}),
        plan(gradient_plan(model.list(), dtype, model.grid, 48)),
        states(world.device(), plan, model.list(), {.reduce_bucket_size = 90}) {
    model.set_values();
    StepOptions options{.clip_norm = 0.25};
    options.offload_optimizer = offload;
    step = make_step(stage, states, plan, model.communicators(), options);
  }
  // An overflow occurs on the last rank.
  StepResult train(int seed, bool overflow = false) {
    step->begin_micro_batch(true);
    step->before_use(model.list());
    step->before_gradients(model.list());
    model.set_gradients(seed);
    if (overflow && model.dp && model.dp->rank() + 1 == model.dp->size())
      model.parameters[0].gradient.device().stream().kernels().fill(model.parameters[0].gradient,
                                                                    too_large);
    step->after_use(model.list());
    step->gradients_ready(model.list());
    step->end_micro_batch();
    return step->step();
  }
  std::vector<double> values() {
    std::vector<double> all;
    step->before_use(model.list());
    for (const collectives::Parameter& p : model.parameters) append(all, p.value);
    step->after_use(model.list());
    return all;
  }
  // Returns the states of this rank's elements, in order.
  std::vector<double> optimizer_states() {
    std::vector<double> master, first, second;
    std::int64_t last = -1;
    step->optimizer().visit(false, [&](Range range, const RangeStates& of) {
      EXPECT_LE(last, range.begin);
      last = range.end;
      append(master, of.master);
      append(first, of.first_moment);
      append(second, of.second_moment);
    });
    master.insert(master.end(), first.begin(), first.end());
    master.insert(master.end(), second.begin(), second.end());
    return master;
  }
  static void append(std::vector<double>& to, const machine::Tensor& tensor) {
    const std::vector<double> numbers = to_doubles(tensor);
    to.insert(to.end(), numbers.begin(), numbers.end());
  }
};

std::string text(int stage, Dtype dtype, const StateOptions& offload) {
  return fmt::format("stage {}, {}, {}, ratio {}", stage, machine::name(dtype),
                     name(offload.device), offload.cpu.ratio);
}

TEST(Offload, EveryStageGivesTheSameBits) {
  for (const int dp : {1, 3}) {
    machine::run_ranks(dp, [&](machine::World& world) {
      for (int stage = 0; stage < num_stages; ++stage) {
        for (const Dtype dtype : {Dtype::float16, Dtype::float32}) {
          OffloadedTraining in_memory(world, stage, dtype, {});
          std::vector<std::unique_ptr<OffloadedTraining>> others;
          for (const StateOptions& offload : offloads())
            others.push_back(std::make_unique<OffloadedTraining>(world, stage, dtype, offload));
          for (int i = 0; i < 4; ++i) {
            const bool overflow = dp > 1 && i == 2;
            EXPECT_EQ(in_memory.train(i, overflow).updated, !overflow);
            const std::vector<double> values = in_memory.values(),
                                      states = in_memory.optimizer_states();
            for (std::size_t j = 0; j < others.size(); ++j) {
              const auto before = others[j]->optimizer_states();
              EXPECT_EQ(others[j]->train(i, overflow).updated, !overflow);
              const std::string where = text(stage, dtype, offloads()[j]);
              EXPECT_EQ(others[j]->values(), values) << where << ", step " << i;
              EXPECT_EQ(others[j]->optimizer_states(), states) << where << ", step " << i;
              if (overflow || world.rank() == 0) {  // the last rank may own only padding
                EXPECT_EQ(before == states, overflow) << where << ", step " << i;
              }
            }
          }
        }
      }
    });
  }
}

// A step uses the values that the gradients of the previous step led to. A skipped step changes
// nothing, and the pending update is still applied.
TEST(Offload, ADelayedStepIsOneStepStale) {
  machine::run_ranks(2, [](machine::World& world) {
    for (int stage = 0; stage < num_stages; ++stage) {
      for (const Dtype dtype : {Dtype::bfloat16, Dtype::float32}) {
        const std::string where = text(stage, dtype, on_host(1, true));
        OffloadedTraining in_memory(world, stage, dtype, {}),
            delayed(world, stage, dtype, on_host(1, true));
        std::vector<double> stale = in_memory.values();
        for (int i = 0; i < 5; ++i) {
          const bool overflow = i == 2;
          const std::vector<double> before = in_memory.values();
          in_memory.train(i, overflow);
          EXPECT_EQ(delayed.train(i, overflow).updated, !overflow);
          if (!overflow) stale = before;
          EXPECT_EQ(delayed.values(), stale) << where << ", step " << i;
        }
        EXPECT_THROW(delayed.optimizer_states(), std::logic_error) << where;
        delayed.step->drain();
        EXPECT_EQ(delayed.values(), in_memory.values()) << where;
        EXPECT_EQ(delayed.optimizer_states(), in_memory.optimizer_states()) << where;
        EXPECT_NE(delayed.values(), stale) << where;
      }
    }
  });
}

TEST(Offload, BytesMatchTheFormulas) {
  for (const int dp : {1, 2}) {
    machine::run_ranks(dp, [dp](machine::World& world) {
      const auto host = machine::make_host_device();
      for (int stage = 0; stage < num_stages; ++stage) {
        for (const Dtype dtype : {Dtype::bfloat16, Dtype::float64}) {
          std::vector<StateOptions> all = offloads();
          all.push_back(on_host(1, true));
          for (StateOptions& offload : all) {
            offload.host = host.get();
            const std::string where = text(stage, dtype, offload);
            const machine::Ledger& ledger = world.device().ledger();
            const std::size_t optimizer = ledger.current(Category::optimizer),
                              buffers = ledger.current(Category::buffers);
            OffloadedTraining trained(world, stage, dtype, offload);
            StepOptions options;
            options.offload_optimizer = offload;
            const Layout& layout = trained.states.layout();
            const ExpectedMemory memory =
                expected_memory(stage, trained.plan, layout, AdamW{}, options);
            EXPECT_EQ(ledger.current(Category::optimizer) - optimizer, memory.optimizer) << where;
            EXPECT_EQ(ledger.current(Category::buffers) - buffers, memory.buffers) << where;
            const OffloadTraffic one =
                expected_offload_traffic(stage, trained.plan, layout, AdamW{}, options);
            OffloadTraffic sum;
            for (int i = 0; i < 3; ++i) {
              const bool overflow = dp > 1 && i == 1;
              trained.train(i, overflow);
              trained.step->drain();
              if (!overflow)
                sum = {sum.down + one.down, sum.up + one.up, sum.nvme_read + one.nvme_read,
                       sum.nvme_written + one.nvme_written};
              EXPECT_EQ(trained.step->optimizer().moved(), sum) << where;
            }
            EXPECT_EQ(host->ledger().peak(Category::optimizer), memory.host_optimizer) << where;
            EXPECT_EQ(host->ledger().peak(Category::buffers), memory.host_buffers) << where;
            trained.step.reset();
            host->ledger().reset_peaks();
          }
        }
      }
    });
  }
}

// By hand: ranges of 100 and 50 elements of bfloat16, pieces of 40, sub-groups of 60.
TEST(Offload, CostsOfTwoRangesByHand) {
  StateOptions options = on_host(0.5);
  options.cpu.piece_size = 40;
  const auto cost = [&] { return state_cost(AdamW{}, Dtype::bfloat16, {100, 50}, options); };
  // 50 and 25 elements on the host, in pieces of 40, 10 and 25, with slots of 40 and 10.
  EXPECT_EQ(cost().host_optimizer, 75u * 12);
  EXPECT_EQ(cost().host_buffers, 50u * (4 + 2) + 75);
  EXPECT_EQ(cost().device_optimizer, 75u * 12);
  EXPECT_EQ(cost().device_buffers, 75u);
  EXPECT_EQ(cost().moved, (OffloadTraffic{75 * 4, 75 * 2}));
  options.cpu.ratio = 1;
  options.cpu.delayed_update = true;
  EXPECT_EQ(cost().host_buffers, 150u * (4 + 2) + 150);
  // Sub-groups of 60, 40 and 50. Each state is padded to 16 elements, each sub-group to 4096 bytes.
  // The slots of the staging are for 60 and 40.
  options = in_file();
  options.nvme.buffer_count = 2;
  EXPECT_EQ(cost().host_buffers, 2u * (4096 + 4096) + 60 + 100 * (4 + 2));
  EXPECT_EQ(cost().device_optimizer + cost().device_buffers + cost().host_optimizer, 0u);
  EXPECT_EQ(cost().moved, (OffloadTraffic{150 * 4, 150 * 2, 3 * 4096, 3 * 4096}));
  // If values have a home, only gradients move.
  const auto away = [&](Dtype dtype, bool first, bool second) {
    return state_cost(AdamW{}, dtype, {100, 50}, options, {first, second});
  };
  EXPECT_EQ(away(Dtype::bfloat16, true, false).host_buffers, cost().host_buffers);
  EXPECT_EQ(away(Dtype::bfloat16, true, true).host_buffers, cost().host_buffers - 100 * 2);
  EXPECT_EQ(away(Dtype::bfloat16, true, false).moved,
            (OffloadTraffic{150 * 4, 50 * 2, 3 * 4096, 3 * 4096}));
  EXPECT_EQ(away(Dtype::float32, false, true).moved,
            (OffloadTraffic{150 * 4 + 100 * 4, 100 * 4, 3 * 4096, 3 * 4096}));
}

// Queued work of the device still writes the gradients and reads the old values.
TEST(Offload, WorksWithValuesThatTheHostCannotRead) {
  constexpr std::int64_t elements = 500;
  testing::FarDevice far;
  const auto host = machine::make_host_device();
  const auto made = [&](machine::Device& on, Dtype dtype, double pace) {
    std::vector<double> numbers;
    for (std::int64_t i = 0; i < elements; ++i)
      numbers.push_back(std::sin(pace * static_cast<double>(i + 1)));
    const machine::Tensor tensor(on, dtype, {elements}, Category::parameters);
    from_doubles(tensor, numbers);
    return tensor;
  };
  std::vector<std::uint8_t> mask(elements, 1);
  std::fill_n(mask.begin() + 130, 200, std::uint8_t{0});
  std::vector<StateOptions> all = {on_host(1)};
  if (IoRing::why_not().empty()) all.push_back(in_file());
  for (const StateOptions& options : all) {
    for (const Dtype dtype : {Dtype::bfloat16, Dtype::float32}) {
      const std::string where = text(3, dtype, options);
      const machine::Tensor values = made(*host, dtype, 0.7), others = made(far, dtype, 0.7);
      InMemoryOptimizer beside(AdamW{}, one_range(values, mask));
      const auto away = make_optimizer(AdamW{}, one_range(others, mask), options, *host);
      for (int step = 1; step <= 3; ++step) {
        const machine::Tensor gradient = made(*host, Dtype::float32, 0.3 * step);
        const machine::Tensor arriving(far, Dtype::float32, {elements}, Category::gradients),
            forward(far, dtype, {elements}, Category::activations);
        const std::uint64_t before = hash(others);
        far.queue().hold(std::chrono::milliseconds(20));
        far.stream().copy(arriving.data(), gradient.data(), gradient.bytes());
        far.stream().copy(forward.data(), others.data(), others.bytes());
        away->update({arriving}, 0.5);
        beside.update({gradient}, 0.5);
        EXPECT_EQ(hash(forward), before) << where << ", step " << step;
        EXPECT_EQ(hash(others), hash(values)) << where << ", step " << step;
      }
    }
  }
}

// The step makes its own host memory if the options have none.
TEST(Offload, AFullDiskOfTheRankReachesTheFileOfStates) {
  if (!IoRing::why_not().empty()) GTEST_SKIP() << IoRing::why_not();
  machine::run_ranks(1, [](machine::World& world) {
    machine::DiskFault disk;
    disk.room = 100;
    world.faults().disk = &disk;
    try {
      OffloadedTraining trained(world, 1, Dtype::float32, in_file());
      trained.train(0, false);
      trained.step->drain();
      ADD_FAILURE() << "the disk has room for 100 bytes";
    } catch (const machine::MachineError& error) {
      EXPECT_EQ(error.failure().kind, machine::Failure::Kind::disk_full) << error.what();
    }
    world.faults() = {};
  });
}

TEST(Offload, RejectsIncompatibleOptions) {
  const auto refusal = [](const StateOptions& options) -> std::string {
    try {
      check(options);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "";
  };
  StateOptions options = on_host(0.5, true);
  EXPECT_EQ(refusal(options), "");
  options.device = OffloadDevice::nvme;
  EXPECT_EQ(refusal(options), "delayed_update requires offload_optimizer cpu (got nvme)");
  options.cpu.delayed_update = false;
  EXPECT_EQ(refusal(options), "ratio 0.5 requires offload_optimizer cpu (got nvme)");
  EXPECT_EQ(refusal(on_host(2)), "ratio is 2; expected 0 to 1");
  EXPECT_EQ(refusal(on_host(NAN)), "ratio is nan; expected 0 to 1");
  options = on_host(1);
  options.cpu.piece_size = 0;
  EXPECT_EQ(refusal(options), "piece_size is 0; expected 1 or more");
  options = in_file();
  options.nvme.buffer_count = 0;
  EXPECT_EQ(refusal(options), "buffer_count is 0; expected 1 or more");
  options = in_file();
  options.nvme.sub_group_size = 0;
  EXPECT_EQ(refusal(options), "sub_group_size is 0; expected 1 or more");
  EXPECT_EQ(find_offload_device("nvme"), OffloadDevice::nvme);
  try {
    find_offload_device("nvm");
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find("'nvme'"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace zero

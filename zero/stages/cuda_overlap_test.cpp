// overlap_comm between CUDA devices: the transfers run in the stream of the group's link. Ranks are
// threads. The host waits for no stream, so only events order the two.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collectives/communicator/communicator.h"
#include "machine/device/kernels.h"
#include "machine/world/grid.h"
#include "machine/world/world.h"
#include "zero/stages/step.h"

namespace zero {
namespace {

using machine::Dtype;
using machine::Transport;
using machine::World;

constexpr std::int64_t sizes[] = {130, 0, 300, 65};
constexpr int steps = 3, micro_batches = 2, num_rows = 4;
const std::vector<std::vector<int>> parts = {{0, 1}, {2, 3}};

// A gradient of row r is (r + 1) * (rank + 1), which every dtype has exactly, as the sums.
struct Model {
  std::vector<Parameter> parameters;
  collectives::Communicator dp;
  GradientPlan plan;
  std::unique_ptr<FlatStates> states;
  std::unique_ptr<Step> step;
  machine::Stream& stream;
  std::vector<std::pair<Tensor, double>> history;  // values at each use, and what they must be

  Model(World& world, Transport transport, int stage, StepOptions options)
      : dp(world, world.group(), transport, machine::LinkStream::own),
        stream(world.device().stream()) {
    for (int row = 0; row < num_rows; ++row) {
      Parameter& p = parameters.emplace_back();
      p.name = std::to_string(row);
      p.global_shape = {sizes[row]};
    }
    const Step::Part all = part({0, 1, 2, 3});
    plan = gradient_plan(all, Dtype::float32, machine::Grid({.dp = world.size()}, world.rank()), 8);
    LayoutOptions layout{200, {}, 100};
    layout.parts = {0, 0, 1, 1};
    states = std::make_unique<FlatStates>(world.device(), plan, all, layout);
    for (const Parameter& p : parameters) stream.kernels().fill(p.value, 8);
    step = make_step(stage, *states, plan, {.dp = &dp}, std::move(options));
  }
  Step::Part part(const std::vector<int>& rows) {
    Step::Part result;
    for (const int row : rows) result.push_back(&parameters[static_cast<std::size_t>(row)]);
    return result;
  }
  double expected(int row, int step_index) const {
    const int ranks = dp.size();
    return 8 - step_index * 0.5 / 8 * micro_batches * (row + 1) * ranks * (ranks + 1) / 2;
  }
  void use(const std::vector<int>& rows, int step_index) {
    step->before_use(part(rows));
    for (const int row : rows) {
      const Tensor& value = parameters[static_cast<std::size_t>(row)].value;
      const Tensor copy(value.device(), value.dtype(), value.shape(), Category::activations);
      stream.copy(copy.data(), value.data(), value.bytes());
      history.emplace_back(copy, expected(row, step_index));
    }
    step->after_use(part(rows));
  }
  void micro_batch(bool last, int step_index) {
    step->begin_micro_batch(last);
    for (const auto& rows : parts) use(rows, step_index);
    for (std::size_t i = parts.size(); i-- > 0;) {
      use(parts[i], step_index);
      step->before_gradients(part(parts[i]));
      for (const int row : parts[i]) {
        const Parameter& p = parameters[static_cast<std::size_t>(row)];
        if (p.gradient.size() == 0) continue;
        const Tensor made(stream.device(), Dtype::float32, p.gradient.shape(),
                          Category::activations);
        stream.kernels().fill(made, (row + 1) * (dp.rank() + 1));
        stream.kernels().accumulate(made, p.gradient);
      }
      step->gradients_ready(part(parts[i]));
    }
    step->end_micro_batch();
  }
};

struct OnDevices {
  Transport transport;
  int ranks, devices;
};
class OverlapOnCuda : public ::testing::TestWithParam<OnDevices> {
 protected:
  void SetUp() override {
    if (machine::cuda::count() < GetParam().devices)
      GTEST_SKIP() << "fewer than " << GetParam().devices << " CUDA devices";
  }
};

TEST_P(OverlapOnCuda, EveryUseSeesTheUpdatedValues) {
  machine::run_ranks(
      GetParam().ranks,
      [](World& world) {
        world.use_device(machine::cuda::make_device(world.rank() % GetParam().devices));
        world.barrier(world.group());
        for (int stage = 0; stage < num_stages; ++stage)
          for (const bool narrow : {false, true})
            for (const bool contiguous : {true, false}) {
              StepOptions options{.rule = Sgd{0.5}};
              options.overlap_comm = true;
              options.contiguous_gradients = contiguous;
              options.allgather_bucket_size = narrow ? 100 : 100'000;
              if (narrow) options.communication_data_type = Dtype::bfloat16;
              Model model(world, GetParam().transport, stage, options);
              for (int step = 0; step < steps; ++step) {
                for (int i = 0; i < micro_batches; ++i)
                  model.micro_batch(i + 1 == micro_batches, step);
                model.step->reduce();
                ASSERT_TRUE(model.step->update().updated);
              }
              for (const auto& rows : parts) model.use(rows, steps);
              for (std::size_t i = 0; i < model.history.size(); ++i)
                for (const double value : to_doubles(model.history[i].first))
                  ASSERT_EQ(value, model.history[i].second)
                      << "stage " << stage << ", narrow " << narrow << ", use " << i;
            }
        world.barrier(world.group());
      },
      20);
}

INSTANTIATE_TEST_SUITE_P(, OverlapOnCuda,
                         ::testing::Values(OnDevices{Transport::cuda_ipc, 2, 1},
                                           OnDevices{Transport::cuda_ipc, 2, 2},
                                           OnDevices{Transport::nccl, 3, 3}),
                         [](const auto& info) {
                           return fmt::format("{}_on_{}", name(info.param.transport),
                                              info.param.devices);
                         });

// The device's stream would wait for each transfer.
TEST(OverlapOnADevice, RequiresAStreamOfTheLink) {
  if (machine::cuda::count() == 0) GTEST_SKIP() << "no CUDA device";
  machine::run_ranks(2, [](World& world) {
    world.use_device(machine::cuda::make_device(0));
    world.barrier(world.group());
    Parameter p;
    p.name = "p";
    p.global_shape = {64};
    collectives::Communicator dp(world, world.group(), Transport::cuda_ipc);
    const GradientPlan plan =
        gradient_plan({&p}, Dtype::float32, machine::Grid({.dp = 2}, world.rank()), 1);
    FlatStates states(world.device(), plan, {&p}, {});
    StepOptions options;
    options.overlap_comm = true;
    EXPECT_THROW(make_step(1, states, plan, {.dp = &dp}, options), std::invalid_argument);
    world.barrier(world.group());
  });
}

}  // namespace
}  // namespace zero

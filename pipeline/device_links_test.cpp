// The executor over links that move memory of a device: in the order of a stream that runs behind
// the host, over CUDA devices, and over a link whose sends wait for their receives.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "machine/device/kernels.h"
#include "machine/link/connect.h"
#include "machine/testing/meeting_link.h"
#include "machine/testing/queued_device.h"
#include "pipeline/execute.h"

namespace pipeline {
namespace {

using machine::Category;
using machine::Tensor;
using machine::Transport;
using machine::World;

const Boundary boundary{{23, 41}, machine::Dtype::float32};

// Whole numbers, so that all sums are exact.
double bias(int part) { return 2 + part % 3; }
double model_input(int micro_batch) { return 11 * micro_batch - 4; }
double loss_gradient(int micro_batch) { return 5 - 3 * micro_batch; }

// A stage of parts y = x + bias and dx = dy + bias that only queues work. It sums the inputs and
// the gradients of each part, when their backward runs.
class QueuedStage {
 public:
  QueuedStage(machine::Device& device, int stage, const Placement& placement, int micro_batches)
      : device_(device), stage_(stage), placement_(placement) {
    const auto filled = [&](double value) {
      const Tensor tensor(device, boundary.dtype, boundary.shape, Category::parameters);
      machine::from_doubles(tensor, std::vector<double>(boundary.shape.size(), value));
      return tensor;
    };
    for (int chunk = 0; chunk < placement.chunks(); ++chunk) {
      biases_.push_back(filled(bias(placement.part(stage, chunk))));
      inputs.push_back(filled(0));
      gradients.push_back(filled(0));
    }
    for (int m = 0; m < micro_batches; ++m) {
      begins_.push_back(filled(model_input(m)));
      ends_.push_back(filled(loss_gradient(m)));
      outputs.push_back(filled(0));
      d_inputs.push_back(filled(0));
    }
  }

  Stage callables() {
    const auto backward_input = [this](const Action& a, const Tensor&, const Tensor& d_out,
                                       const Tensor& d_in) {
      add(d_y(a, d_out), biases_[a.chunk], d_in ? d_in : d_inputs[a.micro_batch]);
    };
    const auto backward_weights = [this](const Action& a, const Tensor& in, const Tensor& d_out) {
      add(inputs[a.chunk], x(a, in), inputs[a.chunk]);
      add(gradients[a.chunk], d_y(a, d_out), gradients[a.chunk]);
    };
    Stage stage;
    stage.forward = [this](const Action& a, const Tensor& in, const Tensor& out) {
      add(x(a, in), biases_[a.chunk], out ? out : outputs[a.micro_batch]);
    };
    stage.backward = [=](const Action& a, const Tensor& in, const Tensor& d_out,
                         const Tensor& d_in) {
      backward_weights(a, in, d_out);
      backward_input(a, in, d_out, d_in);
    };
    stage.backward_input = backward_input;
    stage.backward_weights = backward_weights;
    return stage;
  }

  std::vector<Tensor> inputs, gradients;  // by chunk: sums over micro-batches
  std::vector<Tensor> outputs, d_inputs;  // by micro-batch, of the ends of the model

  void expect_results(int micro_batches) const {
    const auto expect = [&](const Tensor& tensor, double value, const char* what) {
      for (const double each : machine::to_doubles(tensor))
        ASSERT_EQ(each, value) << what << " of stage " << stage_;
    };
    for (int chunk = 0; chunk < placement_.chunks(); ++chunk) {
      const int part = placement_.part(stage_, chunk), parts = placement_.parts();
      double before = 0, after = 0, whole = 0;  // sums of biases
      for (int i = 0; i < parts; ++i) {
        whole += bias(i);
        if (i < part) before += bias(i);
        if (i > part) after += bias(i);
      }
      double x = 0, d = 0;
      for (int m = 0; m < micro_batches; ++m) {
        if (placement_.copy_of(m, micro_batches) != placement_.copy(stage_, chunk)) continue;
        x += model_input(m) + before;
        d += loss_gradient(m) + after;
        if (placement_.ends(stage_, chunk)) expect(outputs[m], model_input(m) + whole, "output");
        if (placement_.begins(stage_, chunk))
          expect(d_inputs[m], loss_gradient(m) + whole, "gradient of the input");
      }
      expect(inputs[chunk], x, "sum of inputs");
      expect(gradients[chunk], d, "sum of gradients");
    }
  }

 private:
  const Tensor& x(const Action& a, const Tensor& given) const {
    return given ? given : begins_[a.micro_batch];
  }
  const Tensor& d_y(const Action& a, const Tensor& given) const {
    return given ? given : ends_[a.micro_batch];
  }
  void add(const Tensor& a, const Tensor& b, const Tensor& sum) const {
    device_.stream().kernels().reduce(machine::Reduction::sum, boundary.dtype, a.data(), b.data(),
                                      sum.data(), sum.size());
  }

  machine::Device& device_;
  int stage_;
  const Placement& placement_;
  std::vector<Tensor> biases_, begins_, ends_;
};

// Returns schedules whose stages send to both neighbours, in both directions, and around.
std::vector<std::pair<StageSchedules, int>> cases(int stages) {
  std::vector<std::pair<StageSchedules, int>> all;
  for (const Schedule& schedule : schedules())
    for (const int micro_batches : {stages, 2 * stages + 1, 2 * stages + 2}) {
      const Size size{stages, micro_batches, schedule.any_chunks ? 2 : schedule.chunks};
      if (schedule.why_not(size).empty())
        all.emplace_back(all_stages(schedule, size), micro_batches);
    }
  return all;
}

// Runs two steps on this rank. around: is called with a step, and calls it.
void run_and_check(World& world, const StageSchedules& schedules, int micro_batches,
                   machine::Device& device, Links links,
                   const std::function<void(const std::function<void()>&)>& around = {},
                   Receives receives = Receives::when_needed) {
  SCOPED_TRACE(::testing::Message() << "rank " << world.rank() << "\n" << text(schedules[0]));
  const std::size_t held = device.ledger().current();
  Executor executor(schedules, micro_batches, boundary, links, device, world.host_device(),
                    receives);
  const ExpectedMemory memory = expected_memory(schedules, world.rank(), boundary, receives);
  EXPECT_EQ(device.ledger().current() - held, memory.activations + memory.buffers);
  for (int step = 0; step < 2; ++step) {
    QueuedStage stage(device, world.rank(), schedules.placement, micro_batches);
    const Stage callables = stage.callables();
    for (machine::Link* link : {&links.activations, &links.gradients}) link->reset_traffic();
    const auto run = [&] { executor.run(callables); };
    around ? around(run) : run();
    const Timeline timeline = executor.timeline();
    EXPECT_EQ(executed(timeline.events), text(schedules[world.rank()]));
    double last = 0;
    for (const Event& event : timeline.events) {
      EXPECT_LE(last, event.start_s);
      EXPECT_LE(event.start_s, event.end_s);
      last = event.end_s;
    }
    stage.expect_results(micro_batches);
    machine::Traffic total = links.activations.total();
    if (&links.gradients != &links.activations) total += links.gradients.total();
    EXPECT_EQ(total, expected_traffic(schedules, world.rank(), boundary));
    world.barrier(world.group());
  }
}

// The streams of all ranks are held back until every rank has queued its step.
TEST(PipelineOverDeviceLinks, QueuesAStepWithoutWaitingForTheStream) {
  for (const int stages : {2, 3}) {
    machine::MarkedStreams of_activations, of_gradients;
    std::vector<machine::QueuedDevice> devices(stages);
    std::atomic<bool> open{false};
    machine::run_ranks(
        stages,
        [&](World& world) {
          machine::QueuedDevice& device = devices[world.rank()];
          const auto activations = machine::queued_link(world, device, of_activations);
          const auto gradients = machine::queued_link(world, device, of_gradients);
          for (const auto& [schedules, micro_batches] : cases(stages))
            run_and_check(world, schedules, micro_batches, device, {*activations, *gradients},
                          [&](const std::function<void()>& step) {
                            open = false;
                            world.barrier(world.group());
                            device.worker().push([&open] { open.wait(false); });
                            step();
                            world.barrier(world.group());
                            open = true;
                            open.notify_all();
                          });
        },
        5);
  }
}

// Messages of a device that the links do not move.
TEST(PipelineOverDeviceLinks, RejectsAnotherDevice) {
  machine::MarkedStreams marks;
  std::vector<machine::QueuedDevice> devices(2);
  machine::run_ranks(2, [&](World& world) {
    const auto link = machine::queued_link(world, devices[world.rank()], marks);
    EXPECT_THROW(Executor(all_stages(find_schedule("1f1b"), 2, 2), 2, boundary, *link,
                          world.host_device(), world.host_device()),
                 std::invalid_argument);
    world.barrier(world.group());
  });
}

TEST(PipelineOverDeviceLinks, AGroupOfMessagesIsNotReceivedAhead) {
  machine::MeetingPoint point;
  machine::run_ranks(2, [&](World& world) {
    machine::MeetingLink link(world.group(), point);
    EXPECT_THROW(Executor(all_stages(find_schedule("1f1b"), 2, 2), 2, boundary, link,
                          world.host_device(), world.host_device(), Receives::ahead),
                 std::invalid_argument);
  });
}

TEST(PipelineOverDeviceLinks, GroupsOfARendezvousLinkMeet) {
  for (int stages = 1; stages <= 4; ++stages) {
    machine::MeetingPoint point;
    machine::run_ranks(stages, [&](World& world) {
      machine::MeetingLink link(world.group(), point);
      for (const auto& [schedules, micro_batches] : cases(stages))
        run_and_check(world, schedules, micro_batches, world.host_device(), link);
    });
  }
}

struct OnDevices {
  Transport transport;
  int devices;
};
class PipelineOverCuda : public testing::TestWithParam<OnDevices> {};

TEST_P(PipelineOverCuda, IsExactInStreamOrder) {
  const auto [transport, devices] = GetParam();
  if (machine::cuda::count() < devices) GTEST_SKIP() << "fewer than " << devices << " CUDA devices";
  for (const int stages : {2, 3}) {
    if (transport == Transport::nccl && stages != devices) continue;  // it needs a device per rank
    machine::run_ranks(stages, [&, transport = transport, devices = devices](World& world) {
      world.use_device(machine::cuda::make_device(world.rank() % devices));
      world.barrier(world.group());
      for (const auto stream : {machine::LinkStream::of_device, machine::LinkStream::own}) {
        const auto connect = [&] {
          return machine::connect(world, world.group(), transport, stream);
        };
        const auto activations = connect(), gradients = connect();
        for (const auto& [schedules, micro_batches] : cases(stages)) {
          const Links links{*activations, *gradients};
          run_and_check(world, schedules, micro_batches, world.device(), links);
          if (transport == Transport::cuda_ipc)
            run_and_check(world, schedules, micro_batches, world.device(), links, {},
                          Receives::ahead);
        }
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(
    , PipelineOverCuda,
    testing::Values(OnDevices{Transport::cuda_ipc, 1}, OnDevices{Transport::cuda_ipc, 2},
                    OnDevices{Transport::nccl, 2}, OnDevices{Transport::nccl, 3}),
    [](const auto& info) {
      return fmt::format("{}_on_{}", name(info.param.transport), info.param.devices);
    });

// Megatron-LM's send_forward_recv_backward and send_backward_recv_forward.
TEST(Exchanges, OfOneForwardOneBackward) {
  const auto schedules = all_stages(find_schedule("1f1b"), 3, 4);
  const auto exchanges = exchanges_of(schedules);
  EXPECT_EQ(text(schedules[0], exchanges[0]),
            "F0 (>F0) F1 (>F1) F2 (>F2 <B0) B0 F3 (>F3 <B1) B1 (<B2) B2 (<B3) B3");
  EXPECT_EQ(
      text(schedules[1], exchanges[1]),
      "(<F0) F0 (>F0 <F1) F1 (>F1 <B0) B0 (>B0 <F2) F2 (>F2 <B1) B1 (>B1 <F3) F3 (>F3 <B2) B2 "
      "(>B2) (<B3) B3 (>B3)");
  EXPECT_EQ(text(schedules[2], exchanges[2]),
            "(<F0) F0 B0 (>B0 <F1) F1 B1 (>B1 <F2) F2 B2 (>B2 <F3) F3 B3 (>B3)");
}

// Each message of a stage is in one exchange, and the receiver needs it next.
TEST(Exchanges, MoveEveryMessageOfEverySchedule) {
  for (int stages = 1; stages <= 8; ++stages)
    for (const auto& [schedules, micro_batches] : cases(stages)) {
      const auto exchanges = exchanges_of(schedules);
      for (int stage = 0; stage < stages; ++stage) {
        const StageExchanges& mine = exchanges[stage];
        std::uint64_t sent = 0, received = 0;
        for (std::size_t i = 0; i < mine.size(); ++i)
          for (const Exchange& exchange : mine[i]) {
            sent += exchange.sends.size();
            if (!exchange.receive) continue;
            ++received;
            ASSERT_LT(i, schedules[stage].size());
            const auto needed = receives(schedules[stage][i], stage, schedules.placement);
            ASSERT_TRUE(needed.has_value());
            EXPECT_EQ(needed->micro_batch, exchange.receive->micro_batch);
            EXPECT_EQ(needed->part, exchange.receive->part);
          }
        const machine::Traffic expected = expected_traffic(schedules, stage, boundary);
        EXPECT_EQ(sent, expected.messages_sent);
        EXPECT_EQ(received, expected.messages_received);
      }
    }
}

TEST(Exchanges, RejectADeadlock) {
  StageSchedules bad = all_stages(find_schedule("1f1b"), 2, 2);
  std::swap(bad[0][0], bad[0][2]);  // the first backward first
  EXPECT_THROW(exchanges_of(bad), std::logic_error);
}

}  // namespace
}  // namespace pipeline

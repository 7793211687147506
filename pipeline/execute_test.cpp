#include "pipeline/execute.h"

#include <gtest/gtest.h>

#include <chrono>
#include <set>
#include <thread>

#include "machine/link/connect.h"
#include "machine/world/world.h"
#include "pipeline/simulate.h"

namespace pipeline {
namespace {

using machine::Category;
using machine::Tensor;

// Sanitizers slow the tests down tenfold, so sanitized builds run fewer stages.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool sanitized = true;
#else
constexpr bool sanitized = false;
#endif

// Larger than the messages that a link copies on sending. The receiver reads it in place.
const Boundary boundary{{31, 37}, machine::Dtype::float64};

// Whole numbers small enough that every result is exact in double.
double factor(int part) { return 2 + part % 3; }
double offset(int part) { return 7 * part - 3; }
double model_input(int micro_batch, std::int64_t i) {
  return micro_batch * 11 + i % 13 * (i % 7) - 4;
}
double loss_gradient(int micro_batch, std::int64_t i) { return 5 - micro_batch + 3 * (i % 11); }

// The reference results of each model copy on its micro-batches. A part is y = factor x + offset.
struct Reference {
  std::vector<std::vector<double>> d_factor, d_offset, output;  // by copy

  Reference(const Placement& placement, int micro_batches) : output(placement.copies()) {
    const int parts = placement.parts();
    d_factor.assign(placement.copies(), std::vector<double>(parts));
    d_offset = d_factor;
    for (int m = 0; m < micro_batches; ++m) {
      const int copy = placement.copy_of(m, micro_batches);
      for (std::int64_t i = 0; i < boundary.shape.size(); ++i) {
        std::vector<double> x = {model_input(m, i)};
        for (int part = 0; part < parts; ++part)
          x.push_back(factor(part) * x.back() + offset(part));
        output[copy].push_back(x.back());
        double d = loss_gradient(m, i);
        for (int part = parts - 1; part >= 0; --part) {
          d_factor[copy][part] += d * x[part];
          d_offset[copy][part] += d;
          d *= factor(part);
        }
      }
    }
  }
};

// One stage of the same model, with boundary tensors as inputs and outputs.
class AffineStage {
 public:
  AffineStage(int stage, const Placement& placement) : stage_(stage), placement_(placement) {
    d_factor.resize(placement.chunks());
    d_offset.resize(placement.chunks());
  }

  Stage callables() {
    Stage stage;
    stage.forward = [this](const Action& a, const Tensor& in, const Tensor& out) {
      forward(a, in, out);
    };
    stage.backward = [this](const Action& a, const Tensor& in, const Tensor& d_out,
                            const Tensor& d_in) {
      weights(a, in, d_out);
      input(a, d_out, d_in);
    };
    stage.backward_input = [this](const Action& a, const Tensor&, const Tensor& d_out,
                                  const Tensor& d_in) { input(a, d_out, d_in); };
    stage.backward_weights = [this](const Action& a, const Tensor& in, const Tensor& d_out) {
      weights(a, in, d_out);
    };
    return stage;
  }

  std::chrono::microseconds delay{0};      // of every action
  std::vector<double> d_factor, d_offset;  // by chunk
  std::vector<double> output;              // of the last part, by micro-batch
  StageSchedule called;

 private:
  void forward(const Action& a, const Tensor& in, const Tensor& out) {
    called.push_back(a);
    std::this_thread::sleep_for(delay);
    const int part = placement_.part(stage_, a.chunk);
    EXPECT_EQ(bool(in), part > 0);
    EXPECT_EQ(bool(out), part < placement_.parts() - 1);
    auto x = in ? machine::to_doubles(in) : std::vector<double>();
    if (!in) {
      for (std::int64_t i = 0; i < boundary.shape.size(); ++i)
        x.push_back(model_input(a.micro_batch, i));
    }
    for (double& value : x) value = factor(part) * value + offset(part);
    if (out) {
      machine::from_doubles(out, x);
    } else {
      output.insert(output.end(), x.begin(), x.end());
    }
  }

  std::vector<double> gradient(const Action& a, const Tensor& d_out) const {
    EXPECT_EQ(bool(d_out), !placement_.ends(stage_, a.chunk));
    if (d_out) return machine::to_doubles(d_out);
    std::vector<double> d;
    for (std::int64_t i = 0; i < boundary.shape.size(); ++i)
      d.push_back(loss_gradient(a.micro_batch, i));
    return d;
  }

  void input(const Action& a, const Tensor& d_out, const Tensor& d_in) {
    std::this_thread::sleep_for(delay);
    if (a.kind == Kind::backward || a.kind == Kind::backward_input) called.push_back(a);
    EXPECT_EQ(bool(d_in), !placement_.begins(stage_, a.chunk));
    auto d = gradient(a, d_out);
    for (double& value : d) value *= factor(placement_.part(stage_, a.chunk));
    if (d_in) machine::from_doubles(d_in, d);
  }

  void weights(const Action& a, const Tensor& in, const Tensor& d_out) {
    if (a.kind == Kind::backward_weights) called.push_back(a);
    const auto d = gradient(a, d_out);
    const auto x = in ? machine::to_doubles(in) : std::vector<double>();
    for (std::size_t i = 0; i < d.size(); ++i) {
      d_factor[a.chunk] +=
          d[i] * (in ? x[i] : model_input(a.micro_batch, static_cast<std::int64_t>(i)));
      d_offset[a.chunk] += d[i];
    }
  }

  int stage_;
  const Placement& placement_;
};

// Host memory as a device that the host cannot read. To the executor it looks like CUDA.
class OpaqueDevice : public machine::Device {
 public:
  OpaqueDevice() : Device(Kind::cuda), inner_(machine::make_host_device()) {
    stream_ = inner_->make_stream();
  }
  std::string description() const override { return "opaque"; }
  std::unique_ptr<machine::Stream> make_stream() override { return inner_->make_stream(); }

 private:
  void* do_allocate(std::size_t bytes) override {
    return ::operator new (bytes, std::align_val_t{64});
  }
  void do_free(void* data, std::size_t) override { ::operator delete (data, std::align_val_t{64}); }
  std::unique_ptr<machine::Device> inner_;
};

void expect_events_in_order(const StageTimeline& events) {
  double last = 0;
  for (const Event& event : events) {
    EXPECT_LE(last, event.start_s);
    EXPECT_LE(event.start_s, event.end_s);
    last = event.end_s;
  }
}

// Runs two steps of a schedule on ranks. Checks results, order, memory and traffic.
void run_and_check(const StageSchedules& schedules, int micro_batches, bool opaque = false,
                   int slow_stage = -1, Receives receives = Receives::when_needed) {
  const int stages = static_cast<int>(schedules.size());
  const Placement& placement = schedules.placement;
  const Reference reference(placement, micro_batches);
  machine::run_ranks(stages, [&](machine::World& world) {
    SCOPED_TRACE(draw(schedules));
    const int rank = world.rank();
    const auto link = machine::connect(world, world.group(), machine::Transport::shared_memory);
    const auto gradients =
        machine::connect(world, world.group(), machine::Transport::shared_memory);
    const bool two = needs_two_links(schedules);
    OpaqueDevice opaque_device;
    machine::Device& device =
        opaque ? static_cast<machine::Device&>(opaque_device) : world.device();
    device.ledger().reset_peaks();
    const std::size_t held = device.ledger().current();
    Executor executor(schedules, micro_batches, boundary, {*link, two ? *gradients : *link}, device,
                      world.host_device(), receives);
    const ExpectedMemory memory = expected_memory(schedules, rank, boundary, receives);
    EXPECT_EQ(device.ledger().current(Category::activations), memory.activations);
    EXPECT_EQ(device.ledger().current() - held, memory.activations + memory.buffers);

    for (int step = 0; step < 2; ++step) {
      AffineStage stage(rank, placement);
      if (rank == slow_stage) stage.delay = std::chrono::milliseconds(2);
      link->reset_traffic();
      gradients->reset_traffic();
      executor.run(stage.callables());
      const Timeline timeline = executor.timeline();

      EXPECT_EQ(executed(timeline.events), text(schedules[rank]));
      EXPECT_EQ(text(stage.called), text(schedules[rank]));
      EXPECT_EQ(timeline.peak_in_flight, peak_activations(schedules[rank]));
      expect_events_in_order(timeline.events);
      for (int chunk = 0; chunk < placement.chunks(); ++chunk) {
        const int copy = placement.copy(rank, chunk), part = placement.part(rank, chunk);
        EXPECT_EQ(stage.d_factor[chunk], reference.d_factor[copy][part]);
        EXPECT_EQ(stage.d_offset[chunk], reference.d_offset[copy][part]);
        if (placement.ends(rank, chunk)) {
          EXPECT_EQ(stage.output, reference.output[copy]);
        }
      }

      machine::Traffic total = link->total();
      total += gradients->total();
      EXPECT_EQ(total, expected_traffic(schedules, rank, boundary));
      for (const auto& [label, traffic] : link->traffic()) {
        if (traffic.messages_sent == 0) continue;
        EXPECT_EQ(label, (machine::TrafficLabel{machine::Operation::send_receive, boundary.dtype}));
      }
    }
    EXPECT_EQ(device.ledger().peak() - held, memory.activations + memory.buffers);
  });
}

TEST(Execute, EveryScheduleGivesTheModelsGradients) {
  for (const Schedule& schedule : schedules()) {
    std::set<int> ran;
    for (int stages = 1; stages <= (sanitized ? 3 : 4); ++stages) {
      for (int micro_batches : std::set<int>{1, std::max(1, stages - 1), stages, 2 * stages,
                                             2 * stages + 1, 2 * stages + 2}) {
        for (int chunks :
             schedule.any_chunks ? std::set<int>{2, 3} : std::set<int>{schedule.chunks}) {
          const Size size{stages, micro_batches, chunks};
          if (!schedule.why_not(size).empty()) continue;
          run_and_check(all_stages(schedule, size), micro_batches);
          ran.insert(stages);
        }
      }
    }
    std::set<int> expected = schedule.name == "dual_pipe" ? std::set{2, 4} : std::set{1, 2, 3, 4};
    if (sanitized) expected.erase(4);
    EXPECT_EQ(ran, expected);
  }
}

TEST(Execute, MemoryAndTrafficMatchThePapers) {
  const std::size_t bytes = 31 * 37 * 8;
  const auto one_f_one_b = all_stages(find_schedule("1f1b"), 4, 8);
  const auto gpipe = all_stages(find_schedule("gpipe"), 4, 8);
  for (int stage = 0; stage < 4; ++stage) {
    EXPECT_EQ(expected_memory(one_f_one_b, stage, boundary).activations,
              stage == 0 ? 0 : (4 - stage) * bytes);
    EXPECT_EQ(expected_memory(gpipe, stage, boundary).activations, stage == 0 ? 0 : 8 * bytes);
    // Two outgoing buffers per direction and one incoming gradient. The first and the last stage
    // have one direction.
    const std::size_t buffers = (stage < 3 ? 3 : 0) + (stage > 0 ? 2 : 0);
    EXPECT_EQ(expected_memory(one_f_one_b, stage, boundary).buffers, buffers * bytes);
    // One activation and one gradient for each micro-batch and boundary.
    const std::uint64_t messages = 8 * ((stage < 3) + (stage > 0));
    EXPECT_EQ(expected_traffic(gpipe, stage, boundary),
              (machine::Traffic{messages * bytes, messages, messages * bytes, messages}));
    EXPECT_EQ(expected_traffic(one_f_one_b, stage, boundary),
              expected_traffic(gpipe, stage, boundary));
  }
}

TEST(Execute, SplitBackward) {
  const StageSchedules halves = {parse("F0 F1 I0 W0 F2 I1 W1 I2 W2"),
                                 parse("F0 I0 F1 I1 W0 F2 I2 W1 W2")};
  EXPECT_EQ(expected_memory({halves[0], halves[0], halves[1]}, 1, boundary).buffers,
            5 * boundary.bytes());
  run_and_check(halves, 3);
}

TEST(Execute, Chunks) {
  const StageSchedule actions = parse("F0 F1 F0.1 F1.1 B0.1 B1.1 B0 B1");
  run_and_check({actions, actions}, 2);
  run_and_check({actions, actions, actions}, 2);
}

// ZB-V holds p micro-batches per stage, in 2p chunks, and sends to both neighbours.
TEST(Execute, MemoryOfTwoChunks) {
  const std::size_t bytes = boundary.bytes();
  const auto zb_v = all_stages(find_schedule("zb_v"), 4, 8);
  EXPECT_EQ(expected_traffic(zb_v, 0, boundary).messages_sent, 2 * 8u);
  EXPECT_EQ(expected_traffic(zb_v, 1, boundary).messages_sent, 4 * 8u);
  EXPECT_EQ(expected_traffic(zb_v, 3, boundary).messages_sent, 2 * 8u);  // no message at the turn
  // On the first stage, chunk 0 needs no input. Each forward of chunk 1 precedes its backward
  // directly.
  EXPECT_EQ(expected_memory(zb_v, 0, boundary).activations, bytes);
  // 2p activations in flight, plus the output of chunk 0 for chunk 1 on the stage of the turn.
  EXPECT_EQ(expected_memory(zb_v, 3, boundary).activations, 9 * bytes);
  // Interleaved 1F1B sends one activation per micro-batch and part except the last part, and one
  // gradient per micro-batch and part except the first part.
  const auto interleaved = all_stages(find_schedule("interleaved_1f1b"), {4, 8, 3});
  std::uint64_t messages = 0;
  for (int stage = 0; stage < 4; ++stage)
    messages += expected_traffic(interleaved, stage, boundary).messages_sent;
  EXPECT_EQ(messages, 2 * 8 * (3 * 4 - 1u));
}

TEST(Execute, CopiesThroughTheHostIfItCannotReadTheDevice) {
  run_and_check(all_stages(find_schedule("1f1b"), 3, 7), 7, true);
  run_and_check(all_stages(find_schedule("zb_v"), 3, 7), 7, true);
}

// The other stages run ahead of a slow stage until their outbox is full. They overwrite no message
// in transit.
TEST(Execute, ASlowStageDoesNotChangeTheResults) {
  for (const Schedule& schedule : schedules()) {
    if (sanitized && schedule.name != "1f1b" && schedule.name != "zb_v") continue;
    const int stages = schedule.name == "dual_pipe" ? 4 : 3,
              micro_batches = schedule.name == "dual_pipe" ? 8 : 6;
    for (int slow = 0; slow < stages; ++slow)
      run_and_check(all_stages(schedule, stages, micro_batches), micro_batches, false, slow);
  }
}

// A thread receives while the stage computes, also while a neighbour is late.
TEST(Execute, ReceivesAheadGiveTheSameGradients) {
  for (const Schedule& schedule : schedules()) {
    if (sanitized && schedule.name != "1f1b" && schedule.name != "zb_v") continue;
    const int stages = schedule.name == "dual_pipe" ? 4 : 3,
              micro_batches = schedule.name == "dual_pipe" ? 8 : 7;
    if (!schedule.why_not({stages, micro_batches, schedule.chunks}).empty()) continue;
    const StageSchedules actions = all_stages(schedule, stages, micro_batches);
    for (const int slow : {-1, 0, 2})
      run_and_check(actions, micro_batches, false, slow, Receives::ahead);
    run_and_check(actions, micro_batches, true, -1, Receives::ahead);
  }
}

// The message of the next action is there while an action computes. On stage i of p, 1F1B then
// holds p - i + 1 inputs, and, as GPipe, a second gradient where backward follows backward.
TEST(Execute, AMessageThatIsReceivedAheadTakesABuffer) {
  const std::size_t bytes = boundary.bytes();
  const auto one_f_one_b = all_stages(find_schedule("1f1b"), 4, 8);
  const auto gpipe = all_stages(find_schedule("gpipe"), 4, 8);
  for (int stage = 0; stage < 4; ++stage) {
    const std::size_t buffers = (2 * (stage < 3) + 2 * (stage > 0) + 2 * (stage < 3)) * bytes;
    const ExpectedMemory few = expected_memory(one_f_one_b, stage, boundary, Receives::ahead);
    EXPECT_EQ(few.activations, stage == 0 ? 0 : (4 - stage + 1) * bytes) << stage;
    EXPECT_EQ(few.buffers, buffers) << stage;
    const ExpectedMemory all = expected_memory(gpipe, stage, boundary, Receives::ahead);
    EXPECT_EQ(all.activations, stage == 0 ? 0 : 8 * bytes) << stage;
    EXPECT_EQ(all.buffers, buffers) << stage;
  }
}

TEST(Execute, RejectsBadSchedulesBeforeAnyRankWaits) {
  machine::run_ranks(2, [](machine::World& world) {
    const auto link = machine::connect(world, world.group(), machine::Transport::shared_memory);
    StageSchedules bad = all_stages(find_schedule("1f1b"), 2, 2);
    std::swap(bad[0][0], bad[0][1]);
    EXPECT_THROW(Executor(bad, 2, boundary, *link, world.device(), world.host_device()),
                 std::invalid_argument);
    Executor executor(all_stages(find_schedule("1f1b"), 2, 2), 2, boundary, *link, world.device(),
                      world.host_device());
    EXPECT_THROW(executor.run({}), std::invalid_argument);
    // dual_pipe with one link for both directions of both copies.
    EXPECT_THROW(Executor(all_stages(find_schedule("dual_pipe"), 2, 4), 4, boundary, *link,
                          world.device(), world.host_device()),
                 std::invalid_argument);
  });
}

}  // namespace
}  // namespace pipeline

// Claim: a schedule's idle time is what its paper's formula says. Each stage sleeps where it would
// compute, F = I = W and the same on all stages, so that a few cores show many stages; messages are
// small. Counters: bubble_measured beside bubble_expected, their ratio where a bubble is expected,
// and executor_overhead, the part of the step in which a stage neither computed nor waited.
//
// Times are measured, not judged; what was run and moved is (papers: pipeline/schedule.cpp).

#include <fmt/format.h>
#include <sys/prctl.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <memory>

#include "machine/base/clock.h"
#include "machine/link/connect.h"
#include "pipeline/execute.h"
#include "suite/reference/boundary_traffic.h"
#include "suite/trainer/measured_step.h"
#include "suite/unit.h"

namespace suite {
namespace {

using pipeline::Action;

// Sleeps that last as long as they are told to: the kernel's timer slack is taken away from this
// thread, and what waking up takes, measured once, is slept less. Takes no core meanwhile, so more
// ranks than cores can each be "computing". Linux; without it the slack stays.
class CalibratedSleep {
 public:
  explicit CalibratedSleep(double typical_s);  // what most sleeps will take
  ~CalibratedSleep();
  CalibratedSleep(const CalibratedSleep&) = delete;
  CalibratedSleep& operator=(const CalibratedSleep&) = delete;
  void operator()(double seconds) const;

 private:
  double late_s_ = 0;   // median, of waking up
  long slack_ns_ = -1;  // this thread's before; -1: not known
};

CalibratedSleep::CalibratedSleep(double typical_s) {
  slack_ns_ = prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0);
  prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
  std::array<double, 15> late;
  for (double& seconds : late) {
    const double start_s = machine::steady_s();
    (*this)(typical_s);
    seconds = machine::steady_s() - start_s - typical_s;
  }
  std::nth_element(late.begin(), late.begin() + late.size() / 2, late.end());
  late_s_ = std::clamp(late[late.size() / 2], 0.0, typical_s / 2);
}

CalibratedSleep::~CalibratedSleep() {
  if (slack_ns_ > 0) prctl(PR_SET_TIMERSLACK, slack_ns_, 0, 0, 0);
}

void CalibratedSleep::operator()(double seconds) const {
  seconds = std::max(0.0, seconds - late_s_);
  timespec left;
  left.tv_sec = static_cast<time_t>(std::floor(seconds));
  left.tv_nsec = static_cast<long>((seconds - std::floor(seconds)) * 1e9);
  while (nanosleep(&left, &left) != 0 && errno == EINTR) {
  }
}

struct PipelineBubble {
  static constexpr std::string_view name = "pipeline_bubble";
  static constexpr std::string_view about =
      "idle time of a pipeline schedule against its formula; stages sleep instead of computing";
  static constexpr Oracle oracles[] = {Oracle::volume, Oracle::memory, Oracle::schedule};
  static constexpr Counter counters[] = {
      {"executor_overhead", "", Better::lower, Nature::measured,
       "fraction of a step that is neither computing nor waiting"}};

  struct Case {
    int ranks = 2;
    std::string schedule;
    int virtual_stages = 1;  // chunks of a stage
    int micro_batches = 4;
    int micro_batch_us = 0;  // F + I + W of a stage: of all its chunks that a micro-batch meets
    Transport transport{};
  };

  static Sweep<Case> sweep() {
    using enum Profile;
    Sweep<Case> sweep;
    std::vector<std::string> schedules = pipeline::schedule_names();
    sweep.axis("schedule", &Case::schedule, "1f1b", schedules)
        .axis("virtual_stages", &Case::virtual_stages, 1)
        .axis("micro_batches", &Case::micro_batches, 8)
        .axis("micro_batch_us", &Case::micro_batch_us, 3000)
        .axis("transport", &Case::transport, Transport::shared_memory,
              {Transport::shared_memory, Transport::mpi})
        .axis("ranks", &Case::ranks, 4)
        .only([](const Case& c) {
          return c.micro_batch_us < 1 ? std::string("micro_batch_us must be positive")
                                      : pipeline::find_schedule(c.schedule)
                                            .why_not({c.ranks, c.micro_batches, c.virtual_stages});
        });
    const std::string interleaved = "interleaved_1f1b";  // with one chunk it is 1f1b
    std::erase(schedules, interleaved);
    for (const auto& [names, chunks] :
         {std::pair(schedules, std::vector{1, 2}), {std::vector{interleaved}, std::vector{2}}})
      sweep
          .slice({quick}, "schedules",
                 {vary(&Case::schedule, names), vary(&Case::virtual_stages, chunks)})
          .slice({acceptance, paper}, "matrix",
                 {vary(&Case::schedule, names), vary(&Case::virtual_stages, chunks),
                  vary(&Case::micro_batches, {4, 8, 16, 32}),
                  vary(&Case::micro_batch_us, {3000, 24000}), vary(&Case::ranks, {2, 4, 8})})
          .slice({smoke}, "smoke",
                 {vary(&Case::schedule, names), vary(&Case::virtual_stages, chunks),
                  vary(&Case::micro_batches, {4}), vary(&Case::micro_batch_us, {300}),
                  vary(&Case::ranks, {2, 4})});
    sweep.slice({quick}, "edges",
                {vary(&Case::schedule, {"1f1b", "zb_v"}), vary(&Case::virtual_stages, {1, 2}),
                 vary(&Case::micro_batches, {7}), vary(&Case::ranks, {3})});
    return sweep;
  }
  PipelineBubble(const Case& c, Context& context)
      : case_(c),
        context_(context),
        schedule_(pipeline::find_schedule(c.schedule)),
        size_{c.ranks, c.micro_batches, c.virtual_stages},
        actions_(pipeline::all_stages(schedule_, size_)),
        third_s_(c.micro_batch_us * 1e-6 / 3 * c.ranks / actions_.placement.parts()),
        sleep_(third_s_),
        memory_(context.device.ledger()) {
    activations_ = machine::connect(context.world, context.group, c.transport);
    gradients_ = machine::connect(context.world, context.group, c.transport);
    executor_ = std::make_unique<pipeline::Executor>(actions_, c.micro_batches, boundary,
                                                     pipeline::Links{*activations_, *gradients_},
                                                     context.device, context.world.host_device());
    stage_.forward = [this](const Action&, const Tensor&, const Tensor&) { sleep_(third_s_); };
    stage_.backward = [this](const Action&, const Tensor&, const Tensor&, const Tensor&) {
      sleep_(2 * third_s_);
    };
    stage_.backward_input = [this](const Action&, const Tensor&, const Tensor&, const Tensor&) {
      sleep_(third_s_);
    };
    stage_.backward_weights = [this](const Action&, const Tensor&, const Tensor&) {
      sleep_(third_s_);
    };
  }

  void prepare() {}
  void run() { executor_->run(stage_); }

  void judge(Judge& judge) {
    const int rank = context_.group.index;
    judge.shares_reference(Oracle::memory);  // slots of the executor
    const pipeline::ExpectedMemory expected = pipeline::expected_memory(actions_, rank, boundary);
    for (std::size_t i = 0; i < std::size(categories); ++i)
      judge.memory(
          categories[i], memory_.peak(categories[i]),
          categories[i] == Category::activations ? expected.activations : expected.buffers);
    activations_->reset_traffic();
    gradients_->reset_traffic();
    const pipeline::Timeline timeline = executor_->run(stage_);
    machine::Traffic measured = activations_->total();
    measured += gradients_->total();
    judge.volume("pp", {Operation::send_receive, boundary.dtype}, measured,
                 boundary_traffic(actions_.placement, rank, case_.micro_batches, boundary.bytes()));
    const std::string what = fmt::format("stage {}", rank);
    judge.schedule(what, pipeline::executed(timeline.events), text(schedule_.stage(rank, size_)));
    judge.schedule(what + ", micro-batches alive at once", timeline.peak_in_flight,
                   schedule_.peak(rank, size_));
  }

  Cost cost() const { return {}; }

  void describe(Description& description) {
    // Of several the one that the machine disturbed least: a core that comes late is no bubble.
    const MeasuredStep step = measured_steps(context_.world, context_.group, 5, [&] {
                                context_.world.barrier(context_.group);
                                return executor_->run(stage_);
                              }).front();
    suite::describe(description, step, context_.group);
    // A long step is no figure: its micro-batches can't be told apart.
    if (case_.micro_batches > 8) description.timeline.clear();
    describe_bubble(description, step, schedule_, size_, actions_, {third_s_, third_s_, third_s_});
    description.set("executor_overhead", executor_overhead(step));
  }

 private:
  static constexpr Category categories[] = {Category::activations, Category::buffers};
  static inline const pipeline::Boundary boundary{{1, 256}, Dtype::float32};

  Case case_;
  Context& context_;
  const pipeline::Schedule& schedule_;
  pipeline::Size size_;
  pipeline::StageSchedules actions_;
  double third_s_;  // F, I and W of a chunk
  CalibratedSleep sleep_;
  harness::PeakMeter memory_;
  std::unique_ptr<machine::Link> activations_, gradients_;
  std::unique_ptr<pipeline::Executor> executor_;
  pipeline::Stage stage_;
};

const bool registered = harness::add<PipelineBubble>();

}  // namespace
}  // namespace suite

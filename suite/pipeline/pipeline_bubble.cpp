// Claim: the idle time of a schedule is that of its paper's formula. Each stage sleeps instead of
// computing, so that a few cores show many stages. F = I = W, the same on all stages, and messages
// are small. Counters: bubble_measured and bubble_expected, their ratio if a bubble is expected,
// step_simulated_s, and executor_overhead, the fraction of the step in which a stage does not
// compute or wait.
//
// Times are measured, not judged. Actions and messages are judged (papers: pipeline/schedule.cpp).

#include <sys/prctl.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <thread>

#include "harness/measure/statistics.h"
#include "machine/base/clock.h"
#include "pipeline/simulate.h"
#include "suite/pipeline/pipeline_run.h"

namespace suite {
namespace {

// Sleeps for an exact time. Sets this thread's timer slack to the minimum, and subtracts the time
// of waking up, measured once. A sleep needs no core, so more ranks than cores can be "computing".
class CalibratedSleep {
 public:
  // typical_s: the length of most sleeps.
  explicit CalibratedSleep(double typical_s) {
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
    std::array<double, 15> late;
    for (double& seconds : late) {
      const double start_s = machine::steady_s();
      (*this)(typical_s);
      seconds = machine::steady_s() - start_s - typical_s;
    }
    late_s_ = std::clamp(harness::median(late), 0.0, typical_s / 2);
  }
  ~CalibratedSleep() {
    if (slack_ns_ > 0) prctl(PR_SET_TIMERSLACK, slack_ns_, 0, 0, 0);
  }
  CalibratedSleep(const CalibratedSleep&) = delete;
  CalibratedSleep& operator=(const CalibratedSleep&) = delete;
  void operator()(double seconds) const {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds - late_s_));
  }

 private:
  double late_s_ = 0;  // median time of waking up
  // The previous slack of this thread; -1: not known.
  const long slack_ns_ = prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0);
};

struct PipelineBubble {
  static constexpr std::string_view name = "pipeline_bubble";
  static constexpr std::string_view about =
      "idle time of a pipeline schedule compared with its formula; stages sleep instead of "
      "computing";
  static constexpr Oracle oracles[] = {Oracle::volume, Oracle::memory, Oracle::schedule};
  static constexpr Counter counters[] = {
      {"executor_overhead", "", Better::lower, Nature::measured,
       "fraction of a step that is neither computing nor waiting"},
      {"step_simulated_s", "s", Better::neither, Nature::measured,
       "time of one step by simulation, from idle stages to idle stages"}};

  struct Case {
    int ranks = 2;
    std::string schedule;
    int virtual_stages = 1;  // chunks per stage
    int micro_batches = 4;
    int micro_batch_us = 0;  // F + I + W of a micro-batch on all chunks of a stage
    Transport transport{};
  };

  static Sweep<Case> sweep() {
    using enum Profile;
    const std::vector<std::string> schedules = pipeline::schedule_names();
    Sweep<Case> sweep;
    sweep.axis("schedule", &Case::schedule, "1f1b", schedules)
        .axis("virtual_stages", &Case::virtual_stages, 1)
        .axis("micro_batches", &Case::micro_batches, 8)
        .axis("micro_batch_us", &Case::micro_batch_us, 3000)
        .axis("transport", &Case::transport, Transport::shared_memory)
        .axis("ranks", &Case::ranks, 4)
        .only([](const Case& c) {
          if (c.micro_batch_us < 1) return std::string("micro_batch_us must be positive");
          // A stage sleeps on the host. A stream would not wait for it.
          if (machine::between_devices(c.transport))
            return std::string("the unit sends host memory; use shared_memory or mpi");
          return why_no_schedule(c);
        });
    const std::string interleaved = "interleaved_1f1b";  // with one chunk it is 1f1b
    std::vector<std::string> others = schedules;
    std::erase(others, interleaved);
    for (const auto& [names, counts] :
         {std::pair(others, std::vector{1, 2}), {std::vector{interleaved}, std::vector{2}}}) {
      const auto schedule = vary(&Case::schedule, names);
      const auto chunks = vary(&Case::virtual_stages, counts);
      sweep.slice({quick}, "schedules", {schedule, chunks})
          .slice({acceptance, paper}, "matrix",
                 {schedule, chunks, vary(&Case::micro_batches, {4, 8, 16, 32}),
                  vary(&Case::micro_batch_us, {3000, 24000}), vary(&Case::ranks, {2, 4, 8})})
          .slice({smoke}, "smoke",
                 {schedule, chunks, vary(&Case::micro_batches, {4}),
                  vary(&Case::micro_batch_us, {300}), vary(&Case::ranks, {2, 4})});
    }
    return sweep.slice(
        {quick}, "edges",
        {vary(&Case::schedule, {"1f1b", "zb_v"}), vary(&Case::virtual_stages, {1, 2}),
         vary(&Case::micro_batches, {7}), vary(&Case::ranks, {3})});
  }

  PipelineBubble(const Case& c, Context& context)
      : case_(c),
        memory_(context.device.ledger()),
        run_(c, context, {{1, 256}, Dtype::float32}),
        third_s_(c.micro_batch_us * 1e-6 / 3 * c.ranks / run_.actions.placement.parts()),
        sleep_(third_s_) {
    const auto one_third = [this](const auto&...) { sleep_(third_s_); };
    stage_ = {one_third, [this](const auto&...) { sleep_(2 * third_s_); }, one_third, one_third};
  }

  void prepare() {}
  void run() { run_.run(stage_); }

  void judge(Judge& judge) {
    judge.shares_reference(Oracle::memory);  // the reference counts slots with the executor's code
    const pipeline::ExpectedMemory expected =
        pipeline::expected_memory(run_.actions, run_.stage, run_.boundary);
    judge.memory(Category::activations, memory_.peak(Category::activations), expected.activations);
    judge.memory(Category::buffers, memory_.peak(Category::buffers), expected.buffers);
    run_.judge(judge, stage_);
  }

  Cost cost() const { return {}; }

  void describe(Description& description) {
    // Describes the fastest step, which the machine disturbed least, because a late core is not a
    // bubble.
    const pipeline::Costs costs{third_s_, third_s_, third_s_};
    const MeasuredStep step = run_.describe(
        description, stage_, [] {}, 0, costs);
    // The paper's formula of ZB-H2 and ZB-V leaves out that stages begin one after another, which
    // the next step would hide.
    const std::vector<pipeline::Costs> equal(run_.actions.size(), costs);
    description.set("step_simulated_s", pipeline::simulate(run_.actions, equal).makespan_s);
    // The figure of a longer step does not show its micro-batches.
    if (case_.micro_batches > 8) description.timeline.clear();
    description.set("executor_overhead", executor_overhead(step));
  }

 private:
  Case case_;
  harness::PeakMeter memory_;
  PipelineRun run_;
  double third_s_;  // seconds of each of F, I and W of a chunk
  CalibratedSleep sleep_;
  pipeline::Stage stage_;
};

const bool registered = harness::add<PipelineBubble>();

}  // namespace
}  // namespace suite

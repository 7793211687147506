// Claim: over a slow link overlap_comm hides the reductions and gathers over dp behind forward and
// backward, including those of the next step, and gives the same bits.
//
// Link and computation are sleeps. A sleep needs no core, so two cores are enough to show the
// overlap. A part computes forward and backward for a time proportional to its elements. Every
// collective of gradients or values first waits for a time proportional to its bytes. The waits of
// a step sum to communication_ratio times the computation of the micro-batches that reduce: all
// micro-batches, or the last one in ZeRO stages 0 and 1. The real cost of the collectives is added.
//
// exposed_without_s and exposed_with_s: the time that the link adds to a step without and with
// overlap_comm. hidden_fraction = 1 - with / without. Each is a median over alternating rounds of
// the maximum over ranks. The measured time is that from one step's end to a later step's end, over
// the number of steps between. With overlap_comm values are in flight at both ends, so that a step
// includes the rest of the previous one. A step's last bucket of gradients and its first bucket of
// values cannot be hidden. In ZeRO stages 2 and 3 a complete bucket waits for the previous one. A
// sample is a step with overlap_comm.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "harness/measure/statistics.h"
#include "machine/base/clock.h"
#include "machine/link/connect.h"
#include "suite/reference/unit.h"
#include "suite/zero/zero_step_model.h"
#include "zero/stages/step.h"

namespace suite {
namespace {

using collectives::Parameter;

constexpr int rounds = 5, steps_of_round = 2;

void sleep_for(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

struct ZeroOverlap {
  static constexpr std::string_view name = "zero_overlap";
  static constexpr std::string_view about =
      "fraction of a slow link's time that overlap_comm hides behind forward and backward";
  static constexpr Oracle oracles[] = {Oracle::numerics, Oracle::determinism};
  static constexpr Counter counters[] = {
      {"step_without_link_s", "s", Better::lower, Nature::measured,
       "time of a step over a fast link"},
      {"exposed_without_s", "s", Better::lower, Nature::measured,
       "time that a slow link adds to a step without overlap_comm"},
      {"exposed_with_s", "s", Better::lower, Nature::measured,
       "time that a slow link adds to a step with overlap_comm"},
      {"link_GBps", "GB/s", Better::neither, Nature::measured, "bandwidth of the slow link"},
      {"hidden_fraction", "", Better::higher, Nature::measured,
       "1 - `exposed_with_s` / `exposed_without_s`"}};

  struct Case {
    int ranks = 2, stage = 0, micro_batches = 1, parameters = 0, reduce_bucket = 0;
    int computation_ms = 0;
    Dtype dtype{};
    std::string communication_ratio;

    double computation_s() const { return computation_ms * 1e-3; }  // per micro-batch
  };

  static Sweep<Case> sweep() {
    using enum Profile;
    const auto stages = vary(&Case::stage, {0, 1, 2, 3});
    return Sweep<Case>()
        .axis("dtype", &Case::dtype, Dtype::bfloat16)
        .axis("zero-stage", &Case::stage, 3, {0, 1, 2, 3})
        .axis("ranks", &Case::ranks, 2)
        .axis("gradient_accumulation_steps", &Case::micro_batches, 1)
        .axis("parameters", &Case::parameters, 100'003)
        .axis("reduce_bucket_size", &Case::reduce_bucket, 500'000'000)
        .axis("computation_ms", &Case::computation_ms, 40)
        .axis("communication_ratio", &Case::communication_ratio, "0.25",
              {"0.1", "0.25", "0.5", "0.75", "1", "1.5", "2"})
        .only([](const Case& c) -> std::string {
          if (c.ranks < 2) return "ranks must be at least 2, because one rank does not communicate";
          if (c.parameters < 1000)
            return fmt::format("parameters is {}; expected at least 1000", c.parameters);
          if (c.micro_batches < 1 || c.reduce_bucket < 1 || c.computation_ms < 1)
            return "micro-batches, elements of a bucket and milliseconds must be at least 1";
          return "";
        })
        .slice({quick}, "stage 3", {vary(&Case::computation_ms, {20})})
        .slice({acceptance, paper}, "matrix",
               {stages, vary(&Case::micro_batches, {1, 4}), vary(&Case::computation_ms, {100})})
        .slice({smoke}, "smoke",
               {stages, vary(&Case::parameters, {10'007}), vary(&Case::computation_ms, {4})});
  }

  static std::string why_not(const Case&, const Context& context) {
    if (!context.device.readable_by_host())
      return "the host's sleeps do not slow the streams of a GPU";
    return machine::why_not(context.world, context.group, Transport::shared_memory);
  }

  ZeroOverlap(const Case& c, Context& context)
      : case_(c),
        context_(context),
        runs_{{*this, false, false},
              {*this, false, true},
              {*this, true, false},
              {*this, true, true}} {
    // From the second step on scratch is allocated and stage 3 prefetches.
    for (Run& run : runs_) run.step();
    bytes_ = 0;
    runs_[fast].step();
    bytes_of_step_ = static_cast<double>(bytes_);
    seconds_per_element_ = c.computation_s() / (2.0 * c.parameters);
    const int reducing = c.stage >= 2 ? c.micro_batches : 1;
    seconds_per_byte_ =
        std::stod(c.communication_ratio) * c.computation_s() * reducing / bytes_of_step_;
  }

  void prepare() {}
  void run() { runs_[overlapped_slow].step(); }

  void judge(Judge& judge) {
    std::vector<double> first;
    for (Run& run : runs_) {
      run.start();
      for (int step = 0; step < 2; ++step) run.step();
      const std::vector<double> values = run.values(judge);
      if (first.empty()) first = values;
      judge.exact("values " + run.text(), values, first);
    }
  }

  Cost cost() const { return {}; }

  void describe(Description& description) {
    std::array<std::vector<double>, num_runs>
        seconds;  // seconds of the slowest rank, one per round
    for (int round = 0; round < rounds; ++round)
      for (std::size_t i = 0; i < num_runs; ++i) {
        context_.world.barrier(context_.group);
        seconds[i].push_back(std::ranges::max(
            context_.world.all_gather(context_.group, runs_[i].seconds_of_a_step())));
      }
    const auto added = [&](std::size_t with_link, std::size_t without_link) {
      std::vector<double> differences;
      std::ranges::transform(seconds[with_link], seconds[without_link],
                             std::back_inserter(differences), std::minus());
      return harness::median(differences);
    };
    const double without = added(slow, fast), with = added(overlapped_slow, overlapped_fast);
    description.set("step_without_link_s", harness::median(seconds[fast]));
    description.set("exposed_without_s", without);
    description.set("exposed_with_s", with);
    description.set("link_GBps", 1e-9 / seconds_per_byte_);
    if (without <= 0) return;
    description.set("hidden_fraction", 1 - with / without);
    description.note = fmt::format(
        "{:.1f} ms of transfers: {:.1f} ms exposed without overlap_comm, {:.1f} ms with it; "
        "{:.0f} % hidden",
        1e3 * seconds_per_byte_ * bytes_of_step_, 1e3 * without, 1e3 * with,
        100 * (1 - with / without));
  }

 private:
  enum : std::size_t { fast, slow, overlapped_fast, overlapped_slow, num_runs };

  // A model with its states and its step.
  class Run {
   public:
    Run(ZeroOverlap& unit, bool overlap, bool slow)
        : unit_(unit),
          overlap_(overlap),
          slow_(slow),
          dp_(unit.context_.world, unit.context_.group, Transport::shared_memory),
          model_(unit.case_.parameters, unit.case_.dtype, unit.context_.seed,
                 unit.context_.group.index, unit.case_.ranks, unit.case_.micro_batches),
          plan_(model_.plan()) {
      model_.make_gradients(unit.context_.device, plan_.gradient_dtype);
      start();
    }
    void start() {
      step_.reset();
      states_.reset();
      states_ = model_.states(unit_.context_.device, unit_.case_.reduce_bucket, 100);
      zero::StepOptions options;
      options.overlap_comm = overlap_;
      options.before_transfer = [this](std::size_t bytes) {
        if (slow_) return sleep_for(unit_.seconds_per_byte_ * static_cast<double>(bytes));
        if (!overlap_) unit_.bytes_ += bytes;
      };
      step_ = zero::make_step(unit_.case_.stage, *states_, plan_, {.dp = &dp_}, options);
    }
    void step() {
      for (int i = 0; i < unit_.case_.micro_batches; ++i)
        model_.run(*step_, i,
                   [this](const Parameter& p, std::int64_t) { unit_.compute(p.value.size()); });
      step_->step();
    }
    double seconds_of_a_step() {
      step();
      const double begin = machine::steady_s();
      for (int i = 0; i < steps_of_round; ++i) step();
      const double seconds = machine::steady_s() - begin;
      step_->wait_for_values();
      return seconds / steps_of_round;
    }
    std::string text() const {
      return fmt::format("{} overlap_comm{}", overlap_ ? "with" : "without",
                         slow_ ? ", over a slow link" : "");
    }
    std::vector<double> values(Judge& judge) {
      model_.with_values(*step_, [&](const Parameter& p, std::int64_t) {
        judge.same_bits(p.name, hash(p.value));
      });
      return model_.values(*step_);
    }

   private:
    ZeroOverlap& unit_;
    const bool overlap_, slow_;
    collectives::Communicator dp_;
    ZeroStepModel model_;
    const zero::GradientPlan plan_;
    std::unique_ptr<zero::FlatStates> states_;
    std::unique_ptr<zero::Step> step_;
  };

  // A sleep is about 0.1 ms late, so many small parameters share one sleep.
  void compute(std::int64_t elements) {
    due_s_ += seconds_per_element_ * static_cast<double>(elements);
    if (due_s_ >= 1e-3) sleep_for(std::exchange(due_s_, 0));
  }

  Case case_;
  Context& context_;
  std::size_t bytes_ = 0;  // bytes of transfers so far
  double bytes_of_step_ = 0;
  double seconds_per_element_ = 0, seconds_per_byte_ = 0, due_s_ = 0;
  Run runs_[num_runs];  // last: runs use the members above
};

const bool registered = harness::add<ZeroOverlap>();

}  // namespace
}  // namespace suite

// Claim: the time of a part by the step's clock (machine/world/step_clock.h) equals the time that
// the step saves without that part.
//
// All ranks alternate a recorded step and the same step without the part:
//
//   communication   dp = ranks with ZeRO stage 0, whose ranks all update everything; without
//                   the part each rank takes a separate step of its own sequences
//   optimizer       each rank separately; without the part only forward and backward
//   recompute       each rank separately, with all layers recomputed; without the part no layer
//   recorder        each rank separately, recorded; without the part not recorded. The part is
//                   the number of the step's events times the time of one event in a loop
//
// part_fraction = 1 - rest / step. rest is the step without the part by its clock.
// left_out_fraction = 1 - without / step. Both use medians over rounds, averaged over ranks. They
// may differ by side effects of omitting the part: the contents of caches, and ranks that wait for
// other ranks. The case fails if on some rank they differ by more than `tolerance` with 99.9 %
// confidence. If a rank had to wait for its core, the machine determines the rank that waits, and
// times are not judged.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <memory>
#include <vector>

#include "harness/measure/core_delay.h"
#include "harness/measure/statistics.h"
#include "harness/unit/unit.h"
#include "machine/base/clock.h"
#include "machine/world/step_clock.h"
#include "suite/configuration/models.h"
#include "suite/trainer/trainer.h"

namespace suite {
namespace {

using harness::Better, harness::Nature;

using harness::Oracle;
using harness::Profile;
using harness::vary;
using machine::Dtype;
using machine::Part;

constexpr double tolerance = 0.05;  // fraction of the step
constexpr double most_delayed =
    0.05;  // fraction of the time in which other processes have the core
constexpr int most_rounds = 101, least_rounds = 15;
constexpr double most_s = 5;  // limit of the measurement after least_rounds

struct StepParts {
  static constexpr std::string_view name = "step_parts";
  static constexpr std::string_view about =
      "time of a part by a step's clock, compared with the same step without it";
  static constexpr Oracle oracles[] = {Oracle::numerics, Oracle::determinism};
  static constexpr harness::Counter counters[] = {
      {"part_fraction", "", Better::neither, Nature::measured,
       "fraction of the step that the part takes, by the step's clock"},
      {"left_out_fraction", "", Better::neither, Nature::measured,
       "fraction by which a step without the part is shorter"}};

  struct Case {
    int ranks = 2;
    std::string model, left_out;
    Dtype dtype{};
    int sequences = 4;  // per rank and step
  };

  static harness::Sweep<Case> sweep() {
    using enum Profile;
    harness::Sweep<Case> sweep;
    const std::vector<std::string> all{"communication", "optimizer", "recompute", "recorder"};
    sweep.axis("ranks", &Case::ranks, 2)
        .axis("model", &Case::model, "small", model_names())
        .axis("dtype", &Case::dtype, Dtype::float32)
        .axis("sequences", &Case::sequences, 4)
        .axis("left_out", &Case::left_out, all.front(), all)
        .only([](const Case& c) -> std::string {
          if (c.sequences < 1) return "sequences must be at least 1";
          if (c.left_out == "communication" && c.ranks < 2)
            return "ranks must be at least 2, because one rank does not communicate";
          return "";
        })
        .slice({quick}, "communication")
        .slice({acceptance, paper}, "all", {vary(&Case::left_out, all)})
        .slice({smoke}, "smoke", {vary(&Case::model, {"tiny"}), vary(&Case::left_out, all)});
    return sweep;
  }

  StepParts(const Case& c, harness::Context& context)
      : case_(c), context_(context), corpus_(Corpus::generated(context.seed)) {
    TrainingConfig config;
    set_model(config, c.model);
    config.precision.dtype = c.dtype;
    config.seed = context.seed;
    config.optimizer.weight_decay = 0.01;
    config.optimizer.clipping = 0;
    const bool together = c.left_out == "communication";
    TrainingConfig one = config;
    one.batch.global_batch_size = c.sequences;
    if (c.left_out == "recompute")
      config.activations.recompute_granularity = layers::RecomputeGranularity::full;
    config.degrees.dp = together ? c.ranks : 1;
    config.batch.global_batch_size = together ? c.ranks * c.sequences : c.sequences;
    whole_ = make(config);
    rest_ = make(one);
    for (int i = 0; i < 2; ++i) {
      run();
      run_rest();
    }
  }

  void prepare() {}
  void run() {
    start_clock();
    whole_->step();
    clock_.stop();
  }

  void judge(harness::Judge& judge) {
    measure();
    if (are_threads())
      judge.not_applicable(Oracle::numerics,
                           "ranks are threads, so their times are not meaningful");
    else if (delayed_ > most_delayed)
      judge.not_applicable(
          Oracle::numerics,
          fmt::format(
              "a rank waited for its core for {:.0f} % of the time, because the machine is busy",
              100 * delayed_));
    else
      judge.times(
          fmt::format("{}, fraction of a step by the clock and by omitting it", case_.left_out),
          surely(), tolerance);
    // A recorded step computes the same bits.
    const std::string key = fmt::format("rank {}, recorded or not", context_.group.index);
    for (const bool recorded : {true, false}) {
      const std::unique_ptr<Trainer> fresh = make(whole_->config());
      for (int step = 0; step < 2; ++step) {
        if (recorded) start_clock();
        fresh->step();
        clock_.stop();
      }
      judge.same_bits(key, fresh->hash_of_values());
    }
  }

  harness::Cost cost() const { return {}; }

  void describe(harness::Description& description) {
    const double step_s = harness::median(step_s_);
    double part = 0, left_out = 0;
    for (const auto& [theirs, their_left_out] : context_.world.all_gather(
             context_.group, std::array{1 - harness::median(rest_s_) / step_s,
                                        1 - harness::median(without_s_) / step_s})) {
      part += theirs / case_.ranks;
      left_out += their_left_out / case_.ranks;
    }
    description.set("part_fraction", part);
    description.set("left_out_fraction", left_out);
  }

 private:
  std::unique_ptr<Trainer> make(const TrainingConfig& config) {
    const machine::Group alone{"alone", {context_.world.rank()}, 0};
    return std::make_unique<Trainer>(context_.world, config.degrees.dp > 1 ? context_.group : alone,
                                     context_.device, config, corpus_);
  }

  void start_clock() {
    machine::Device& device = context_.device;
    clock_.start(device.readable_by_host() ? nullptr : &device.stream());
  }

  void run_rest() {
    if (case_.left_out == "optimizer")
      rest_->forward_backward();
    else
      rest_->step();
  }

  double part() const {
    const machine::StepTimes::Lane& own = clock_.times().own;
    if (case_.left_out == "recorder") return static_cast<double>(own.intervals.size()) * event_s_;
    double seconds = 0;
    for (const machine::StepTimes::Row& row : own.rows)
      if (machine::name(row.part) == case_.left_out) seconds += row.seconds;
    return seconds;
  }

  static double seconds_of_an_event() {
    constexpr int events = 1000;
    std::vector<double> seconds;
    machine::StepClock clock;
    for (int i = 0; i < 50; ++i) {
      clock.start();
      for (int event = 0; event < events; ++event) const machine::During nothing(Part::forward);
      clock.stop();
      seconds.push_back((clock.times().end_s - clock.times().start_s) / events);
    }
    return harness::median(seconds);
  }

  bool are_threads() const { return context_.world.ranks_are_threads(); }

  void measure() {
    event_s_ = seconds_of_an_event();
    const double began_s = machine::steady_s(), delayed_s = harness::core_delay_s();
    const auto go_on = [&] {  // rank 0 decides
      const auto done = static_cast<int>(step_s_.size());
      const bool enough =
          are_threads() ? done > 0
                        : done >= most_rounds ||
                              (done >= least_rounds && machine::steady_s() - began_s > most_s);
      return context_.world.broadcast(context_.group, 0, !enough);
    };
    while (go_on()) {
      run();
      step_s_.push_back(clock_.times().end_s - clock_.times().start_s);
      rest_s_.push_back(step_s_.back() - part());
      context_.world.barrier(context_.group);
      const double start_s = machine::steady_s();
      run_rest();
      without_s_.push_back(machine::steady_s() - start_s);
    }
    const double mine = (harness::core_delay_s() - delayed_s) / (machine::steady_s() - began_s);
    delayed_ =
        std::max(delayed_, std::ranges::max(context_.world.all_gather(context_.group, mine)));
  }

  // Returns a lower bound of the median difference with 99.9 % confidence.
  double surely() const {
    std::vector<double> differences;
    for (std::size_t i = 0; i < step_s_.size(); ++i)
      differences.push_back((without_s_[i] - rest_s_[i]) / step_s_[i]);
    std::ranges::sort(differences);
    const auto [low, high] =
        harness::median_ranks(static_cast<int>(differences.size()), 0.999).value();
    return std::max({0.0, differences[static_cast<std::size_t>(low) - 1],
                     -differences[static_cast<std::size_t>(high) - 1]});
  }

  Case case_;
  harness::Context& context_;
  Corpus corpus_;
  machine::StepClock clock_;
  std::unique_ptr<Trainer> whole_, rest_;
  double event_s_ = 0, delayed_ = 0;  // delayed: fraction of the time, maximum over ranks
  std::vector<double> step_s_, rest_s_, without_s_;  // by round
};

const bool registered = harness::add<StepParts>();

}  // namespace
}  // namespace suite

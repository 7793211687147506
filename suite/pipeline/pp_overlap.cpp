// Claim: over a link of a set speed, receiving ahead hides the messages of a pipeline behind its
// stages. Stages and link sleep, and a sleep needs no core.
//
// GPipe with p stages and m micro-batches. Forward and backward of a micro-batch take c each, a
// message x = communication_ratio * c. The link then adds to a step
//
//   received when needed   2 (m + p - 2) x
//   received ahead         2 (p - 1) x + 2 (m - 1) max(0, x - c)
//
// A stage that waits for its message is busy for x + c with each micro-batch, so all m of the last
// stage and the way of the first one to it count, in both directions. A stage that receives during
// its action before is busy for max(c, x), and only the way of the first message is exposed. 1F1B
// is not run, because it hides little: the p micro-batches in flight make a round trip of 2 (p - 1)
// messages, so at least 2 (p - 1) x / p of each stays exposed. When needed it is x with two stages,
// 2 x with more. More micro-batches in flight would hide it (Zhuang et al. 2023, arXiv:2211.05322).
//
// Judged with a slack of a fifth of the first row: ahead not more, and when needed not less, so the
// link has that speed. A late core only prolongs a step, so a time is the minimum over rounds of
// the maximum over ranks, and rounds end when the bounds hold.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <limits>
#include <memory>
#include <string>
#include <thread>

#include "machine/base/clock.h"
#include "machine/device/faults.h"
#include "machine/link/connect.h"
#include "machine/link/faulty_link.h"
#include "pipeline/execute.h"
#include "suite/reference/unit.h"

namespace suite {
namespace {

using pipeline::Receives;

constexpr int fewest_rounds = 3, most_rounds = 20;
constexpr double slack = 0.2;
const pipeline::Boundary boundary{{16, 64}, Dtype::float32};  // larger than a copied message

class PpOverlap {
 public:
  static constexpr std::string_view name = "pp_overlap";
  static constexpr std::string_view about =
      "the time of a slow link that receiving ahead hides behind the stages of a pipeline";
  static constexpr Oracle oracles[] = {Oracle::numerics, Oracle::determinism};
  static constexpr Counter counters[] = {
      {"pp_exposed_when_needed_s", "s", Better::lower, Nature::measured,
       "time that a slow link adds to a step without receives ahead"},
      {"pp_exposed_ahead_s", "s", Better::lower, Nature::measured,
       "time that a slow link adds to a step with receives ahead"},
      {"pp_hidden_fraction", "", Better::higher, Nature::measured,
       "1 - `pp_exposed_ahead_s` / `pp_exposed_when_needed_s`"}};

  struct Case {
    int ranks = 2, micro_batches = 6, stage_ms = 0;
    std::string communication_ratio;

    double stage_s() const { return stage_ms * 1e-3; }                               // c
    double message_s() const { return std::stod(communication_ratio) * stage_s(); }  // x
  };

  static Sweep<Case> sweep() {
    using enum Profile;
    return Sweep<Case>()
        .axis("ranks", &Case::ranks, 2)
        .axis("micro_batches", &Case::micro_batches, 6)
        .axis("stage_ms", &Case::stage_ms, 10)
        .axis("communication_ratio", &Case::communication_ratio, "0.5",
              {"0.25", "0.5", "0.75", "1", "1.5", "2"})
        .only([](const Case& c) -> std::string {
          if (c.ranks < 2) return "ranks must be at least 2, because one stage receives no message";
          if (c.micro_batches < 1) return "micro_batches must be at least 1";
          if (c.stage_ms < 1) return "stage_ms must be at least 1";
          return "";
        })
        .slice({quick}, "two stages", {vary(&Case::stage_ms, {5})})
        .slice({acceptance, paper}, "matrix",
               {vary(&Case::ranks, {2, 4}), vary(&Case::micro_batches, {6, 12}),
                vary(&Case::communication_ratio, {"0.5", "1", "1.5"})})
        .slice({smoke}, "smoke", {vary(&Case::stage_ms, {10})});
  }

  static std::string why_not(const Case&, const Context& context) {
    if (!context.device.readable_by_host())
      return "the host's sleeps do not slow the streams of a GPU";
    return machine::why_not(context.world, context.group, Transport::shared_memory);
  }

  PpOverlap(const Case& c, Context& context)
      : case_(c),
        context_(context),
        runs_{{*this, Receives::when_needed, false},
              {*this, Receives::when_needed, true},
              {*this, Receives::ahead, false},
              {*this, Receives::ahead, true}} {}

  void prepare() {}
  void run() { runs_[ahead_slow].step(); }

  void judge(Judge& judge) {
    best_.fill(std::numeric_limits<double>::infinity());
    for (int round = 0; round < fewest_rounds || (round < most_rounds && !within()); ++round)
      for (std::size_t i = 0; i < num_runs; ++i) {
        best_[i] = std::min(best_[i], max_over_ranks(runs_[i].step()));
        judge.same_bits(fmt::format("stage {}: the sum of received values", context_.group.index),
                        runs_[i].received());
      }
    judge.times("missing part of the link's time when needed", when_needed() - added(slow, fast),
                slack * when_needed());
    judge.times("time of the link ahead", added(ahead_slow, ahead_fast),
                ahead() + slack * when_needed());
  }

  Cost cost() const { return {}; }

  void describe(Description& description) {
    const double without = added(slow, fast), with = added(ahead_slow, ahead_fast);
    description.set("pp_exposed_when_needed_s", without);
    description.set("pp_exposed_ahead_s", with);
    if (without <= 0) return;
    description.set("pp_hidden_fraction", 1 - with / without);
    description.note = fmt::format(
        "{:.1f} ms of transfers: {:.1f} ms exposed when received as needed, {:.1f} ms when "
        "received ahead (formula: {:.1f} ms)",
        1e3 * when_needed(), 1e3 * without, 1e3 * with, 1e3 * ahead());
  }

 private:
  enum : std::size_t { fast, slow, ahead_fast, ahead_slow, num_runs };

  // The formulas of the claim.
  double when_needed() const {
    return 2 * (case_.micro_batches + case_.ranks - 2) * case_.message_s();
  }
  double ahead() const {
    const double c = case_.stage_s(), x = case_.message_s();
    return 2 * (case_.ranks - 1) * x + 2 * (case_.micro_batches - 1) * std::max(0.0, x - c);
  }
  double added(std::size_t with_link, std::size_t without_link) const {
    return best_[with_link] - best_[without_link];
  }
  bool within() const {
    return added(ahead_slow, ahead_fast) <= ahead() + slack * when_needed() &&
           added(slow, fast) >= (1 - slack) * when_needed();
  }
  double max_over_ranks(double mine) {
    double slowest = 0;
    for (const double one : context_.world.all_gather(context_.group, mine))
      slowest = std::max(slowest, one);
    return slowest;
  }

  // A pipeline whose stages sleep, over a link with or without a set speed. A stage adds one to
  // each boundary, and adds up what it receives.
  class Run {
   public:
    Run(PpOverlap& unit, Receives receives, bool slow)
        : unit_(unit),
          slow_(slow),
          activations_(link()),
          gradients_(link()),
          executor_(pipeline::all_stages(pipeline::find_schedule("gpipe"), unit.case_.ranks,
                                         unit.case_.micro_batches),
                    unit.case_.micro_batches, boundary, {*activations_, *gradients_},
                    unit.context_.device, unit.context_.world.host_device(), receives) {
      const auto work = [this](const Tensor& in, const Tensor& out) {
        std::this_thread::sleep_for(std::chrono::duration<double>(unit_.case_.stage_s()));
        const float value = in ? static_cast<const float*>(in.data())[in.size() - 1] : 0;
        received_ = 31 * received_ + static_cast<std::uint64_t>(value);
        if (out) std::fill_n(static_cast<float*>(out.data()), out.size(), value + 1);
      };
      stage_.forward = [work](const pipeline::Action&, const Tensor& in, const Tensor& out) {
        work(in, out);
      };
      stage_.backward = [work](const pipeline::Action&, const Tensor&, const Tensor& d_out,
                               const Tensor& d_in) { work(d_out, d_in); };
      step();  // threads and channels are there from the second step on
    }

    double step() {
      received_ = 0;
      unit_.context_.world.barrier(unit_.context_.group);
      const double begin = machine::steady_s();
      executor_.run(stage_);
      return machine::steady_s() - begin;
    }
    std::uint64_t received() const { return received_; }

   private:
    std::unique_ptr<machine::Link> link() const {
      const Context& on = unit_.context_;
      auto link = machine::connect(on.world, on.group, Transport::shared_memory);
      if (!slow_) return link;
      machine::Faults faults;
      for (const int first : on.group.members)
        for (const int second : on.group.members)
          if (first < second)
            faults.slow_links.push_back(
                {first, second, static_cast<double>(boundary.bytes()) / unit_.case_.message_s()});
      return machine::with_faults(std::move(link), faults);
    }

    PpOverlap& unit_;
    const bool slow_;
    std::unique_ptr<machine::Link> activations_, gradients_;
    pipeline::Executor executor_;
    pipeline::Stage stage_;
    std::uint64_t received_ = 0;
  };

  Case case_;
  Context& context_;
  std::array<double, num_runs> best_{};
  Run runs_[num_runs];  // last: runs use the members above
};

const bool registered = harness::add<PpOverlap>();

}  // namespace
}  // namespace suite

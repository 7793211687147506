// Claim: each automaton of loss scaling gives the scales of its tool's rules after scripted
// overflows, derived by hand (zero/optimizers/loss_scale_traces.h; rules:
// zero/optimizers/loss_scale.h). If one rank overflows, all ranks skip the step. A skipped step
// changes nothing: values, master, moments and the count of steps keep their bits, and later steps
// are the same as without the skipped step.
//
// Every rank holds the same half values and AdamW's states, as data-parallel replicas do. A sample
// is one step: check all ranks for overflow, update or skip, then set the new scale.

#include <fmt/format.h>

#include <limits>
#include <optional>

#include "machine/link/connect.h"
#include "suite/reference/unit.h"
#include "zero/optimizers/loss_scale.h"
#include "zero/optimizers/loss_scale_traces.h"
#include "zero/optimizers/optimizer.h"

namespace suite {
namespace {

using zero::LossScaling;

std::vector<std::string> scaling_names() {
  std::vector<std::string> names;
  for (const LossScaling scaling : zero::all_loss_scalings) names.emplace_back(name(scaling));
  return names;
}

std::string text(const std::vector<double>& scales, bool throws = false) {
  return fmt::format("{}{}", fmt::join(scales, " "), throws ? " stop" : "");
}

// The steps over ranks, 'o' if one rank overflows, from scale 64 with a window of two and a
// hysteresis of two. The trace is derived by hand, like the other traces.
constexpr std::string_view rank_steps = "cocooccccc";
constexpr double rank_scale = 64;
std::vector<double> rank_scales(LossScaling scaling) {
  switch (scaling) {
    case LossScaling::constant:
      return {64, 64, 64, 64, 64, 64, 64, 64, 64, 64};
    case LossScaling::megatron:
      return {64, 64, 64, 32, 16, 16, 32, 32, 64, 64};
    case LossScaling::deepspeed_zero:
      return {64, 64, 64, 32, 16, 16, 16, 32, 32, 64};
    default:
      return {64, 32, 32, 16, 8, 8, 8, 16, 16, 32};
  }
}

struct LossScaler {
  static constexpr std::string_view name = "loss_scaler";
  static constexpr std::string_view about =
      "loss scaling by Megatron-LM's and DeepSpeed's rules; all ranks skip a step if one overflows";
  static constexpr Oracle oracles[] = {Oracle::schedule, Oracle::numerics, Oracle::determinism};

  struct Case {
    int ranks = 1;
    Transport transport{};
    std::string scaling;
    int elements = 0;
  };

  static Sweep<Case> sweep(const harness::PlanRequest& request) {
    using enum Profile;
    const std::vector<Transport> transports = harness::usual_transports(request.device);
    const auto scalings = vary(&Case::scaling, scaling_names());
    Sweep<Case> sweep;
    sweep.axis("transport", &Case::transport, transports.front())
        .axis("scaling", &Case::scaling, "megatron", scaling_names())
        .axis("ranks", &Case::ranks, 2)
        .axis("elements", &Case::elements, 100'003)
        .only([](const Case& c) {
          return c.elements < 1 ? fmt::format("elements is {}; expected at least 1", c.elements)
                                : "";
        })
        .slice({quick}, "scalings",
               {vary(&Case::scaling, {"constant", "megatron", "deepspeed_zero"})})
        .slice({acceptance, paper}, "matrix",
               {vary(&Case::transport, transports), scalings, vary(&Case::ranks, {2, 3, 4, 8})})
        .slice({acceptance, paper}, "one rank", {scalings, vary(&Case::ranks, {1})})
        .slice({quick}, "edges",
               {vary(&Case::scaling, {"deepspeed_fused", "deepspeed_unfused"}),
                vary(&Case::ranks, {3}), vary(&Case::elements, {1009})})
        .slice({smoke}, "smoke",
               {scalings, vary(&Case::ranks, {1, 3}), vary(&Case::elements, {127, 1009})});
    if (transports.back() == Transport::mpi)
      sweep.slice({quick}, "transports",
                  {vary(&Case::transport, {Transport::mpi}), vary(&Case::ranks, {4})});
    return sweep;
  }
  LossScaler(const Case& c, Context& context)
      : case_(c),
        context_(context),
        options_{zero::find_loss_scaling(c.scaling), rank_scale, 1, 2, 2},
        dp_(context.world, context.group, c.transport),
        values_(context.device, Dtype::float16, {c.elements}, Category::parameters),
        gradient_(context.device, Dtype::float32, {c.elements}, Category::gradients) {
    start();
    set_gradient(0, 1);
  }

  void prepare() { scale_ = zero::LossScale(options_); }
  void run() { step(); }

  void judge(Judge& judge) {
    for (const zero::LossScaleTrace& trace : zero::loss_scale_traces())
      if (trace.options.scaling == options_.scaling) judge_trace(judge, trace);
    start();
    std::vector<double> scales;
    double changed = 0, missed = 0;
    std::vector<std::uint64_t> before = bits();
    for (std::size_t i = 0; i < rank_steps.size(); ++i) {
      const bool overflows = rank_steps[i] == 'o';
      set_gradient(static_cast<int>(i), scale_.scale());
      if (overflows && static_cast<int>(i) % case_.ranks == context_.group.index) poison(i);
      double& wrong = overflows ? changed : missed;
      wrong += step() == overflows;
      std::vector<std::uint64_t> after = bits();
      for (std::size_t k = 0; k < before.size(); ++k) wrong += (before[k] != after[k]) == overflows;
      scales.push_back(scale_.scale());
      fingerprint(judge, after, fmt::format("after step {}", i));
      before = std::move(after);
    }
    judge.schedule("scales over ranks", text(scales), text(rank_scales(options_.scaling)));
    judge.numerics("states that skipped steps changed", changed, 0);
    judge.numerics("states that steps did not change", missed, 0);
    fingerprint(judge, bits(), "after all steps");

    // Takes only the clean steps, without a scale.
    start();
    for (std::size_t i = 0; i < rank_steps.size(); ++i) {
      if (rank_steps[i] == 'o') continue;
      set_gradient(static_cast<int>(i), 1);
      optimizer_->update(gradient_, 1);
    }
    fingerprint(judge, bits(), "after all steps");
  }

  Cost cost() const {
    // Counts the gradients twice, master and moments read and written, and values written.
    return {.memory_bytes = case_.elements * (4.0 + 4 + 2 * 12 + 2),
            .working_set_bytes = case_.elements * (4.0 + 12 + 2),
            .updates_in_place = true};
  }

 private:
  machine::Kernels& kernels() const { return context_.device.stream().kernels(); }
  void start() {
    optimizer_.reset();
    kernels().fill_uniform(values_, context_.seed, {}, -1, 1);
    optimizer_.emplace(zero::AdamW{}, values_,
                       std::vector<std::uint8_t>(static_cast<std::size_t>(case_.elements), 1));
    scale_ = zero::LossScale(options_);
  }

  bool step() {
    const bool overflow = zero::overflow_anywhere(gradient_, {&dp_});
    if (!overflow) optimizer_->update(gradient_, 1 / scale_.scale());
    scale_.update(overflow);
    return !overflow;
  }

  // Scales are powers of two, so multiplication and division by them are exact.
  void set_gradient(int step, double scale) {
    const std::uint64_t seed = context_.seed + 1 + static_cast<std::uint64_t>(step);
    kernels().fill_uniform(gradient_, seed, {}, -1, 1);
    kernels().scale(gradient_, scale, gradient_);
  }
  // Sets one element to an infinity or NaN, on this rank only.
  void poison(std::size_t step) {
    constexpr double infinity = std::numeric_limits<double>::infinity();
    const double values[] = {infinity, -infinity, std::numeric_limits<double>::quiet_NaN()};
    const std::int64_t at = static_cast<std::int64_t>(step * 104'729) % case_.elements;
    from_doubles(gradient_.slice(at, {1}), {values[step % 3]});
  }

  // Returns hashes of the state that a step changes: the count of steps, values, master, both
  // moments.
  std::vector<std::uint64_t> bits() const {
    std::vector<std::uint64_t> bits = {static_cast<std::uint64_t>(optimizer_->steps())};
    for (const Tensor* tensor : {&values_, &optimizer_->master(), &optimizer_->first_moment(),
                                 &optimizer_->second_moment()})
      bits.push_back(hash(*tensor));
    return bits;
  }
  static void fingerprint(Judge& judge, const std::vector<std::uint64_t>& now,
                          std::string_view when) {
    for (std::size_t i = 0; i < now.size(); ++i)
      judge.same_bits(fmt::format("state {} {}", i, when), now[i]);
  }

  static void judge_trace(Judge& judge, const zero::LossScaleTrace& trace) {
    zero::LossScale scale(trace.options);
    std::vector<double> scales;
    bool stopped = false;
    for (const char step : trace.steps) {
      try {
        scale.update(step == 'o');
        scales.push_back(scale.scale());
      } catch (const zero::OverflowAtMinimum&) {
        stopped = true;
      }
    }
    judge.schedule(fmt::format("{}: {}", trace.what, trace.steps), text(scales, stopped),
                   text(trace.scales, trace.scales.size() < trace.steps.size()));
  }

  Case case_;
  Context& context_;
  zero::LossScaleOptions options_;
  collectives::Communicator dp_;
  Tensor values_, gradient_;
  std::optional<zero::Optimizer> optimizer_;
  zero::LossScale scale_{zero::usual_options(LossScaling::constant)};
};

const bool registered = harness::add<LossScaler>();

}  // namespace
}  // namespace suite

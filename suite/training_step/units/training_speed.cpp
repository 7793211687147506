// Claim: a training step of GPT-2's own size takes little longer than its matrix products. gpt_step
// judges ten steps of small models. This unit judges the first step of a large model that does not
// overflow. Its loss and every parameter's raw gradient are within the bound of rounding
// (reference.h) of the same step in double. Two runs and all replicas have the same bits. Bytes
// held and sent and the pipeline's order match the formulas.
//
// A model that rank 0 cannot hold in double is judged without it: --reference stored compares the
// losses with those of an earlier run, --reference none only judges the step by itself
// (loss_curve.h).
//
// The yardstick is the step's own products. library_s is their time in the same case, measured in
// turn with the step. gemm_fraction is the fraction of the step that they would take.

#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <optional>

#include "suite/reference/gradient_terms.h"
#include "suite/training_step/compressed/compressed_training.h"
#include "suite/training_step/plain_reference.h"
#include "suite/training_step/reference.h"
#include "suite/training_step/step_products.h"
#include "suite/training_step/step_unit.h"

namespace suite {
namespace {

using harness::Better, harness::Nature;
using harness::Profile;
using machine::Dtype;

constexpr std::size_t most_skipped = 64;

struct TrainingSpeed : StepUnit {
  static constexpr std::string_view name = "training_speed";
  static constexpr std::string_view about =
      "a training step of GPT-2, compared with its matrix products; its first gradient is judged";
  static constexpr harness::Counter counters[] = {
      {"gemm_flops", "", Better::neither, Nature::exact,
       "operations of the matrix products of one step"},
      {"gemm_fraction", "", Better::higher, Nature::measured,
       "`library_s` (the step's matrix products without the step) over the time"}};
  static std::string why_not(const Case& c, const harness::Context& context) {
    if (c.config.fp8.on() && context.device.kind() == machine::Device::Kind::cuda)
      return "fp8-format: the yardstick has no products of 8-bit codes; use gpt_step";
    return StepUnit::why_not(c, context);
  }
  static constexpr bool yardstick_is_part = true;  // the products of the step
  static constexpr int least_samples = 5;          // a step on a CPU may take many seconds

  static harness::Sweep<Case> sweep(const harness::PlanRequest& request) {
    using enum Profile;
    harness::Sweep<Case> sweep =
        step_sweep(request, {{"micro-batch-size", "4"}, {"global-batch-size", "4"}});
    const auto with = [&](const std::vector<Profile>& profiles, const char* name, const char* model,
                          const char* length) {
      auto all = grids({1, 2}, {1, 2}, {1}, {1});
      all.push_back(vary("dtype", {"float", "bfloat16"}));
      all.push_back(vary("model", {model}));
      all.push_back(vary("seq-length", {length}));
      sweep.slice(profiles, name, all);
    };
    with({quick}, "small", "small", "model");
    with({acceptance, paper}, "gpt2", "gpt2_124m", "256");
    with({smoke}, "smoke", "tiny", "model");
    return sweep;
  }

  TrainingSpeed(const Case& c, harness::Context& context) : StepUnit(c, context) {
    std::optional<machine::GemmLog> log;
    warm_up([&] {
      log.reset();
      log.emplace();
    });
    products_.emplace(context.device, log->products());
  }

  void yardstick() { products_->run(); }

  void judge(harness::Judge& judge) {
    judge_step(judge);
    gemm_flops_ = products_->flops();
    products_.reset();
    judge_losses(judge);
    judge_saved(judge);
  }

  void describe(harness::Description& description) {
    description.losses = losses_;
    describe_reference(description);
    if (against() == Against::cpu && compresses_gradients(config_))
      description.note = "compressed gradients are compared with a reference by gpt_step only";
    description.set("gemm_flops", gemm_flops_);
    describe_saved(description);
    describe_step(description);
    if (description.seconds > 0 && description.yardstick_s > 0)
      description.set("gemm_fraction", description.yardstick_s / description.seconds);
  }

 private:
  void judge_losses(harness::Judge& judge) {
    if (against() != Against::cpu || compresses_gradients(config_)) {
      losses_ = judge_without_double(judge).losses;
      return;
    }
    judge_first_step(judge);
    losses_ = {first_loss_};
    if (context_.reference.save.empty()) return;
    const std::unique_ptr<Trainer> trainer = make_trainer();
    const LossCurve curve =
        train(*trainer, reference_steps, [&](int step) { judge_replicas(judge, *trainer, step); });
    losses_ = curve.losses;
    save_reference(curve.losses, curve.skipped);
  }

  void judge_first_step(harness::Judge& judge) {
    const auto trainer = make_trainer();
    const bool constant = config_.precision.loss_scale.scaling == zero::LossScaling::constant;
    std::vector<double> scales;
    TrainingRouting routing;
    for (bool ended = false; !ended;) {
      scales.push_back(trainer->loss_scale());
      trainer->forward_backward();
      routing.push_back(judged_routing(judge, *trainer, static_cast<int>(scales.size())));
      first_loss_ = trainer->mean_loss();
      trainer->reduce();
      const bool overflow = gradients_overflow(*trainer, context_.world, context_.group);
      ended = !overflow || constant || scales.size() == most_skipped;
      if (ended) {
        trainer->optimizer_step().gather_gradients();
        trainer->with_values(
            [&] { compare_with_double(judge, *trainer, scales, overflow, routing); });
      }
      judge.exact(fmt::format("whether step {} is taken", scales.size()),
                  std::vector{trainer->update().updated ? 1.0 : 0.0},
                  std::vector{overflow ? 0.0 : 1.0});
      if (scales.size() > 1) continue;
      judge_repeated(judge, *trainer);
    }
    trainer->with_values([&] {
      for (const collectives::Parameter* parameter : trainer->parameters())
        judge.same_bits(fmt::format("{}{} after step {}", parameter->name,
                                    shard_text(*parameter, *trainer), scales.size()),
                        hash(parameter->value));
    });
  }

  // Rank 0 takes the step in double and sends one parameter's gradient after another, because all
  // gradients may not fit in memory. scales: the scales of the steps so far. All these steps were
  // skipped except the last one, which is skipped if is_skipped.
  void compare_with_double(harness::Judge& judge, Trainer& trainer,
                           const std::vector<double>& scales, bool is_skipped,
                           const TrainingRouting& routing) {
    const FirstStep none,
        &exact = context_.group.index == 0
                     ? first_step_of(context_.world, config_, corpus_, scales.size() - 1, routing)
                     : none;
    for (std::size_t step = 0; step < exact.magnitudes.size(); ++step)
      judge_overflow(judge, config_, static_cast<int>(step) + 1,
                     step + 1 < scales.size() || is_skipped, scales[step], exact.magnitudes[step]);
    const double exact_loss = context_.world.broadcast(context_.group, 0, exact.loss);
    judge.numerics(fmt::format("loss of step {} against double", scales.size()),
                   std::abs(first_loss_ - exact_loss),
                   loss_epsilon(config_) * std::abs(exact_loss));
    if (is_skipped) return;
    // A frozen parameter has no gradient, so its term counts as 0 and the bound is smaller.
    const auto norm_of = [&](const std::string& name) {
      const auto found = exact.gradients.find(name);
      return found == exact.gradients.end() ? 0.0 : norm(found->second);
    };
    auto next = exact.gradients.begin();
    const std::size_t count = context_.world.broadcast(context_.group, 0, exact.gradients.size());
    for (std::size_t at = 0; at < count; ++at) {
      using Gradient = std::pair<std::string, std::vector<double>>;
      const bool has_it = next != exact.gradients.end();
      const auto [name, whole] =
          context_.world.broadcast(context_.group, 0, has_it ? Gradient(*next) : Gradient());
      const double size = context_.world.broadcast(
          context_.group, 0, has_it ? size_of_terms(name, config_.model.layers, norm_of) : 0.0);
      if (has_it) ++next;
      for (const collectives::Parameter* mine : trainer.parameters()) {
        if (mine->name != name) continue;
        judge.numerics(
            fmt::format("{}, raw gradient of step {} against double", name, scales.size()),
            distance(unscaled_gradient(trainer, *mine),
                     shard(whole, *mine, trainer.grid().coordinate(machine::Axis::tp))),
            gradient_epsilon(config_, mine->layer) * size);
      }
    }
  }

  std::optional<StepProducts> products_;
  std::vector<double> losses_;
  double gemm_flops_ = 0, first_loss_ = 0;
};

const bool registered = harness::add<TrainingSpeed>();

}  // namespace
}  // namespace suite

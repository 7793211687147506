// Claim: a GPT step cut over TP x PP x DP is the step of one device. Ten steps end with the loss
// and every parameter within the bound that rounding allows (reference.h); replicas hold the same
// bits after every step; bytes sent and bytes held are the sums of the papers' formulas; the
// pipeline does what its schedule says (Shoeybi et al. 2019; Narayanan et al. 2021; Rajbhandari et
// al. 2020).

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>

#include "harness/unit/unit.h"
#include "layers/models/gpt_cost.h"
#include "machine/base/clock.h"
#include "machine/link/connect.h"
#include "suite/trainer/gpt2_weights.h"
#include "suite/trainer/layer_costs.h"
#include "suite/trainer/step_recorder.h"
#include "suite/trainer/timeline_record.h"
#include "suite/trainer/trainer.h"
#include "suite/training_step/reference.h"
#include "suite/training_step/step_case.h"
#include "suite/training_step/step_oracles.h"
#include "zero/offload/io_ring.h"

namespace suite {
namespace {

using harness::Better, harness::Nature;

using harness::Oracle;
using harness::Profile;
using machine::Axis;
using machine::Category;
using machine::Dtype;
using machine::Transport;

struct GptStep {
  static constexpr std::string_view name = "gpt_step";
  static constexpr std::string_view about =
      "forward, backward, gradient reduction and AdamW of a GPT over TP x PP x DP";
  static constexpr Oracle oracles[] = {Oracle::numerics, Oracle::volume, Oracle::memory,
                                       Oracle::schedule, Oracle::determinism};
  static constexpr harness::Counter counters[] = {
      {"loss_error", "", Better::lower, Nature::exact,
       "largest relative error of the ten losses, compared with double"},
      {"skipped_steps", "", Better::neither, Nature::exact,
       "steps of the ten whose float16 gradients overflowed"}};
  using Case = StepCase;

  static harness::Sweep<Case> sweep(Profile profile) {
    const bool quick = profile == Profile::quick;
    StepValues values{.model = {"small"}};
    values.transport = {Transport::shared_memory, Transport::mpi};
    values.schedule = {"gpipe", "1f1b"};  // gpt_grid has them all
    values.zero_stage = {0, 1, 2, 3};
    values.optimizer = {"adamw", "sgd"};
    values.offload_optimizer = values.offload_param = zero::offload_device_names();
    values.ranks = quick ? std::vector{1, 2, 4, 8} : std::vector{1, 2, 3, 4, 8};
    values.tp = values.pp = {1, 2, 4};
    values.dp = values.ranks;
    values.global_batch_size = {quick ? 8 : 24};
    values.sequence_parallel = {0, 1};
    values.recompute_granularity = {"none", "selective", "full"};
    values.distribute_saved_activations = values.cpu_checkpointing = {0, 1};
    values.use_flash_attn = values.uneven_tokens = {0, 1};
    harness::Sweep<Case> sweep = step_sweep(values);
    // Activations held in other ways: one case of each at the usual of all else.
    sweep.sample([quick](const Case& c) {
      if (c.offload_optimizer != "none" || c.offload_param != "none") return offloaded(c, quick);
      if (c.uneven_tokens == 1 || c.optimizer != "adamw")
        return quick ? uneven_quick(c) : uneven(c);
      if (c.zero_stage >= 2) return quick ? in_parts_quick(c) : in_parts(c);
      const bool sequence = c.sequence_parallel == 1,
                 distributed = c.distribute_saved_activations == 1;
      if (!sequence && c.recompute_granularity == "none" && c.use_flash_attn == 0) return true;
      if (c.schedule != "1f1b" || c.zero_stage != 1 || c.transport != Transport::shared_memory)
        return false;
      if (!quick) return true;
      const bool three = c.tp == 2 && c.pp == 2 && c.dp == 2,
                 two = c.tp == 2 && c.pp == 2 && c.dp == 1;
      if (c.use_flash_attn == 1)
        return two && !sequence && c.recompute_granularity == "none" && c.dtype == Dtype::float32;
      if (c.recompute_granularity == "none") return three && c.dtype == Dtype::bfloat16;
      if (c.recompute_granularity == "selective")
        return two && sequence && c.dtype == Dtype::float32;
      return two && distributed && c.dtype == Dtype::bfloat16;
    });
    if (!quick) return sweep;
    // Each axis alone in float, the three together in both dtypes, over both transports.
    return std::move(sweep.sample([](const Case& c) {
      if (c.zero_stage >= 2 || c.uneven_tokens == 1 || c.offload_optimizer != "none" ||
          c.offload_param != "none")
        return true;  // chosen above
      if (c.sequence_parallel == 1 || c.recompute_granularity != "none" || c.use_flash_attn == 1)
        return true;
      const bool usual = c.schedule == "1f1b" && c.zero_stage == 1;
      const bool plain =
          usual && c.transport == Transport::shared_memory && c.dtype == Dtype::float32;
      if (c.ranks <= 2) return plain;
      if (c.tp != 2 || c.pp != 2 || c.dp != 2) return false;
      if (c.transport == Transport::mpi) return usual && c.dtype == Dtype::float32;
      return usual || (c.schedule == "gpipe" && c.zero_stage == 0 && c.dtype == Dtype::float32);
    }));
  }

  // The optimizer's states elsewhere: every stage over every way to cut the model. The values too,
  // in the same place or with the states on the device; both on the host in quick.
  static bool offloaded(const Case& c, bool quick) {
    if (c.transport != Transport::shared_memory || c.schedule != "1f1b" || c.optimizer != "adamw" ||
        c.uneven_tokens == 1 || c.recompute_granularity != "none" || c.use_flash_attn == 1 ||
        c.sequence_parallel == 1)
      return false;
    if (c.offload_param != "none")
      return c.zero_stage == 3 && c.tp == 2 && c.dp == 2 &&
             (c.offload_optimizer == c.offload_param) == (c.dtype == Dtype::bfloat16) &&
             (!quick || (c.offload_param == "cpu" && c.dtype == Dtype::bfloat16));
    return !quick && (c.dtype == Dtype::bfloat16 || c.tp == 2);
  }

  // Tokens that do not count, and the other optimizer: every way to cut the model, and each in
  // every stage.
  static bool uneven(const Case& c) {
    if (c.transport != Transport::shared_memory || c.schedule != "1f1b" ||
        c.recompute_granularity != "none" || c.use_flash_attn == 1)
      return false;
    if (c.uneven_tokens == 1 && c.optimizer != "adamw")
      return c.dtype == Dtype::float32 && c.zero_stage == 1 && c.sequence_parallel == 0;
    return c.zero_stage == (c.pp > 1 ? 1 : 2) && c.sequence_parallel == (c.tp > 1);
  }
  // Half of the ranks have no token that counts in the first step.
  static bool uneven_quick(const Case& c) {
    return uneven(c) && c.optimizer == "sgd" && c.uneven_tokens == 1 && c.ranks == 4 && c.tp == 2 &&
           c.dp == 2;
  }

  // Stages 2 and 3: every way to cut the model, where there is something to shard; stage 3 with
  // activations held in every way.
  static bool in_parts(const Case& c) {
    const bool usual =
        c.sequence_parallel == 0 && c.recompute_granularity == "none" && c.use_flash_attn == 0;
    const bool both = c.tp == 2 && c.dp == 2;
    if (c.transport != Transport::shared_memory)
      return usual && both && c.dtype == Dtype::float32 && c.schedule == "1f1b";
    return usual ? c.dp > 1 : both && c.zero_stage == 3 && c.dtype == Dtype::float32;
  }
  // A case of each: the gradients in parts, then the values too, recomputed and over tp.
  static bool in_parts_quick(const Case& c) {
    if (!in_parts(c) || c.transport != Transport::shared_memory || c.use_flash_attn == 1)
      return false;
    if (c.zero_stage == 2)
      return c.ranks == 2 && c.dtype == Dtype::float32 && c.recompute_granularity == "none";
    return c.ranks == 4 && c.tp == 2 && c.sequence_parallel == 1 &&
           c.recompute_granularity == "full" && c.cpu_checkpointing == 0;
  }

  static std::string why_not(const Case& c, const harness::Context& context) {
    if (c.offload_optimizer == "nvme" || c.offload_param == "nvme")
      if (const std::string why = zero::IoRing::why_not(); !why.empty()) return why;
    return machine::why_not(context.world, context.group, c.transport);
  }

  GptStep(const Case& c, harness::Context& context)
      : case_(c),
        context_(context),
        config_(config_of(c, context.seed)),
        corpus_(context.data_file.empty()
                    ? Corpus::generated(context.seed)
                    : Corpus::from_file(context.data_file, config_.model.sequence,
                                        config_.vocabulary)) {
    config_.weights = context.load_file;
    measure_layers(config_, context.world, context.group, context.device);
    if (!context.load_file.empty() || !context.save_file.empty()) refuse_unlike_gpt2(config_.model);
    for (const Category category : machine::all_categories)
      held_before_[category] = context.device.ledger().current(category);
    trainer_ = make_trainer();
    trainer_->step();
    first_step_hash_ = trainer_->hash_of_values();
    // From here on collectives hold their scratch, as in every later step.
    if (!take_step(*trainer_, [&] { context.device.ledger().reset_peaks(); })) return;
    for (const Category category : machine::all_categories)
      peaks_[category] = context.device.ledger().peak(category) - held_before_[category];
  }

  std::unique_ptr<Trainer> make_trainer() {
    return std::make_unique<Trainer>(context_.world, context_.group, context_.device, config_,
                                     corpus_);
  }

  void prepare() {}

  void run() {
    recorder_.begin();
    trainer_->step();
    recorder_.end(trainer_->timeline());
  }

  void judge(harness::Judge& judge) {
    last_timeline_ = trainer_->timeline();  // of the last step
    judge_memory(judge, *trainer_, context_.device, peaks_);
    judge_volume(judge, *trainer_);
    judge_schedule(judge, *trainer_);
    trainer_.reset();
    judge_training(judge);
  }

  harness::Cost cost() const {
    harness::Cost cost;
    cost.flops = layers::model_flops(config_.model, config_.tokens()) / case_.ranks;
    cost.flops_dtype = case_.dtype;
    cost.tokens = static_cast<double>(config_.tokens());
    return cost;
  }

  void describe(harness::Description& description) {
    description.losses = losses_;
    description.set("loss_error", loss_error_);
    if (case_.dtype == Dtype::float16)
      description.set("skipped_steps", static_cast<double>(std::ranges::count(skipped_, true)));
    if (first_taken(skipped_) == reference_steps)
      description.note = "no step was taken: the gradients of all overflow";
    recorder_.describe(description, context_.world, context_.group, config_);
    description.timeline = gather_timeline(context_.world, context_.group, last_timeline_);
    if (description.seconds > 0) {
      description.set("steps_per_second", 1 / description.seconds);
      const double rate = context_.rates.flops_per_second(case_.dtype, case_.ranks);
      if (rate > 0) description.set("mfu", cost().flops / description.seconds / rate);
    }
  }

 private:
  // Ten steps from the same seed as the reference's.
  void judge_training(harness::Judge& judge) {
    const auto trainer = make_trainer();
    std::map<std::string, ParameterHistory> mine;
    losses_.clear();
    double first_norm = 0;
    zero::LossScale scale(config_.loss_scale);
    std::vector<double> scales;
    for (int step = 0; step < reference_steps; ++step) {
      scales.push_back(scale.scale());
      judge.exact(fmt::format("loss scale of step {}", step + 1),
                  std::vector{trainer->loss_scale()}, std::vector{scale.scale()});
      trainer->forward_backward();
      judge.exact(fmt::format("tokens that step {} divides by", step + 1),
                  std::vector{trainer->optimizer_step().divisor()},
                  std::vector{tokens_that_count(step)});
      losses_.push_back(trainer->mean_loss());
      trainer->optimizer_step().reduce();
      const bool overflow = gradients_overflow(*trainer, context_.world, context_.group);
      skipped_[static_cast<std::size_t>(step)] = overflow;
      const bool first = step == first_taken(skipped_);
      if (first) {
        trainer->optimizer_step().gather_gradients();
        for (const collectives::Parameter* parameter : trainer->parameters())
          mine[parameter->name].first_gradient = unscaled_gradient(*trainer, *parameter);
      }
      const zero::StepResult result = trainer->update();
      judge.exact(fmt::format("whether step {} is taken", step + 1),
                  std::vector{result.updated ? 1.0 : 0.0}, std::vector{overflow ? 0.0 : 1.0});
      scale.update(overflow);
      if (first) first_norm = result.gradient_norm;
      trainer->with_values([&] {
        for (const collectives::Parameter* parameter : trainer->parameters()) {
          if (first) mine[parameter->name].after_one = to_doubles(parameter->value);
          if (step + 1 == reference_steps)
            mine[parameter->name].after_all = to_doubles(parameter->value);
          judge.same_bits(fmt::format("{}{} after step {}", parameter->name,
                                      shard_text(*parameter, *trainer), step + 1),
                          hash(parameter->value));
        }
      });
      if (step == 0) {
        const std::string key = fmt::format("rank {}, two runs of step 1", context_.group.index);
        judge.same_bits(key, first_step_hash_);
        judge.same_bits(key, trainer->hash_of_values());
      }
    }
    if (!context_.save_file.empty()) trainer->save(context_.save_file);
    const Reference reference = shared_reference();
    for (std::size_t step = 0; step < reference.exact.magnitudes.size(); ++step)
      judge_overflow(judge, config_, static_cast<int>(step) + 1, skipped_[step], scales[step],
                     reference.exact.magnitudes[step]);
    // Of the norm no more than of the worst gradient.
    const double norm_bound = gradient_epsilon(config_, "") * reference.exact.gradient_norm;
    const int first = first_taken(skipped_) + 1;
    judge.numerics(fmt::format("gradient norm of step {} against double", first),
                   std::abs(first_norm - reference.exact.gradient_norm), norm_bound);
    judge.numerics(fmt::format("gradient norm of step {} against degree 1", first),
                   std::abs(first_norm - reference.same.gradient_norm), 2 * norm_bound);
    trainer->with_values([&] {
      for (const collectives::Parameter* parameter : trainer->parameters())
        compare(judge, *parameter, mine, reference);
    });
    loss_error_ = 0;
    for (std::size_t step = 0; step < losses_.size(); ++step) {
      loss_error_ =
          std::max(loss_error_, std::abs(losses_[step] / reference.exact.losses[step] - 1));
      judge.numerics(fmt::format("loss of step {} against double", step + 1),
                     std::abs(losses_[step] - reference.exact.losses[step]),
                     reference.bounds.losses[step]);
      judge.numerics(fmt::format("loss of step {} against degree 1", step + 1),
                     std::abs(losses_[step] - reference.same.losses[step]),
                     2 * reference.bounds.losses[step]);
    }
  }

  void compare(harness::Judge& judge, const collectives::Parameter& parameter,
               const std::map<std::string, ParameterHistory>& mine,
               const Reference& reference) const {
    const int tp_rank = trainer_tp_rank();
    const ParameterHistory& got = mine.at(parameter.name);
    const ParameterBounds& bound = reference.bounds.parameters.at(parameter.name);
    for (const bool exact : {true, false}) {
      const ParameterHistory& want =
          (exact ? reference.exact : reference.same).parameters.at(parameter.name);
      const double slack = exact ? 1 : 2;  // two inexact runs may part by both their errors
      const auto check = [&](std::string_view what, const std::vector<double>& values,
                             const std::vector<double>& whole, double distance_bound) {
        judge.numerics(
            fmt::format("{}, {} against {}", parameter.name, what, exact ? "double" : "degree 1"),
            distance(values, shard(whole, parameter, tp_rank)), slack * distance_bound);
      };
      if (const int first = first_taken(skipped_) + 1; first <= reference_steps) {
        check(fmt::format("raw gradient of step {}", first), got.first_gradient,
              want.first_gradient, bound.first_gradient);
        check(fmt::format("value after step {}", first), got.after_one, want.after_one,
              bound.after_one);
      }
      check("value after 10 steps", got.after_all, want.after_all, bound.after_all);
    }
  }

  // Apart from the trainer, which divides by what it has counted itself.
  double tokens_that_count(int step) const {
    const int sequences = config_.global_batch_size, length = config_.model.sequence;
    double all = 0;
    for (int i = 0; i < sequences; ++i)
      all +=
          config_.uneven_tokens ? counted_tokens(config_.seed, step, i, sequences, length) : length;
    return all;
  }

  int trainer_tp_rank() const {
    return machine::Grid(config_.degrees, context_.group.index).coordinate(Axis::tp);
  }

  // Rank 0 has it or makes it; the others sleep until it is sent.
  Reference shared_reference() {
    std::string text;
    if (context_.group.index == 0)
      text = serialize(reference_of(context_.world, config_, corpus_, skipped_));
    return deserialize_reference(context_.world.broadcast(context_.group, 0, text));
  }

  Case case_;
  harness::Context& context_;
  TrainingConfig config_;
  Corpus corpus_;
  CategoryPeaks held_before_, peaks_;
  StepRecorder recorder_;
  std::unique_ptr<Trainer> trainer_;
  std::uint64_t first_step_hash_ = 0;
  pipeline::Timeline last_timeline_;
  std::vector<double> losses_;
  SkippedSteps skipped_{};  // of those that are judged
  double loss_error_ = 0;   // the largest of all steps against double, relative
};

// Llama's shape (layers/gpt_config.h): the same claim and the same oracles, of fewer ways to cut
// it.
struct LlamaStep : GptStep {
  static constexpr std::string_view name = "llama_step";
  static constexpr std::string_view about =
      "gpt_step in Llama's shape: RMSNorm, SwiGLU, rotary positions, grouped queries";

  static harness::Sweep<Case> sweep(Profile profile) {
    const bool quick = profile == Profile::quick;
    StepValues values{.model = {"llama_tiny"}};
    values.ranks = quick ? std::vector{4} : std::vector{1, 2, 4, 8};
    values.tp = quick ? std::vector{2} : std::vector{1, 2, 4};
    values.pp = quick ? std::vector{2} : std::vector{1, 2};
    values.dp = quick ? std::vector{1} : std::vector{1, 2};
    values.global_batch_size = {8};
    values.sequence_parallel = {0, 1};
    values.recompute_granularity = {"none", "selective", "full"};
    values.use_flash_attn = {0, 1};
    harness::Sweep<Case> sweep = step_sweep(values);
    if (quick)
      sweep.sample([](const Case& c) {
        return c.dtype == Dtype::float32 && c.sequence_parallel == 1 &&
               c.recompute_granularity == "none" && c.use_flash_attn == 0;
      });
    return sweep;
  }

  using GptStep::GptStep;
};

// The same claim over every process grid of eight ranks, every schedule with the chunks that it
// has, ZeRO stage, recomputation and dtype, with tokens that do not count. The model has a layer
// for every part of the longest pipeline and a head for every rank.
struct GptGrid : GptStep {
  static constexpr std::string_view name = "gpt_grid";
  static constexpr std::string_view about =
      "gpt_step cut in every way of TP x PP x DP, by every pipeline schedule";

  static harness::Sweep<Case> sweep(Profile profile) {
    const bool quick = profile == Profile::quick;
    StepValues values{.model = {"tiny"}};
    values.model_args = {quick ? "--num-layers 4" : "--num-layers 16 --num-attention-heads 8"};
    values.schedule = pipeline::schedule_names();
    // Not "profile": by measured times two runs may hold and send other bytes.
    values.partition_method = {"uniform", "parameters"};
    values.zero_stage = {0, 1, 2, 3};
    values.ranks = {quick ? 4 : 8};
    values.tp = values.pp = values.dp = quick ? std::vector{1, 2} : std::vector{1, 2, 4, 8};
    values.global_batch_size = {quick ? 8 : 16};
    values.sequence_parallel = {0, 1};
    values.recompute_granularity = {"none", "selective", "full"};
    values.uneven_tokens = {1};
    harness::Sweep<Case> sweep = step_sweep(values);
    return std::move(sweep.sample([profile](const Case& c) {
      // Rows of all ranks are cut wherever there are several.
      if (c.ranks != c.tp * c.pp * c.dp || c.sequence_parallel != (c.tp > 1)) return false;
      if (c.pp == 1 && c.schedule != "1f1b") return false;
      if (c.pp > 1 && c.zero_stage > 1) return false;
      if ((c.partition_method == "parameters") != (c.pp > 1 && c.zero_stage == 0)) return false;
      return profile == Profile::paper || of_cross_section(c, profile == Profile::quick);
    }));
  }

  // Every grid with every schedule once; of a grid the schedules, of a schedule the grids differ in
  // how activations are held, in the stage and in the dtype.
  static bool of_cross_section(const Case& c, bool quick) {
    if (quick && (c.tp != 2 || c.pp != 2 || c.schedule == "gpipe" || c.schedule == "1f1b"))
      return false;
    const std::vector<std::string> names = pipeline::schedule_names();
    const int schedule = static_cast<int>(std::ranges::find(names, c.schedule) - names.begin());
    const int at = schedule + c.tp / 2 + c.pp / 4;
    const std::string_view held[] = {"none", "selective", "full"};
    return c.recompute_granularity == held[at % 3] &&
           (c.dtype == Dtype::float32) == (at % 2 == 0) &&
           (c.pp == 1 || c.zero_stage == at / 2 % 2);
  }

  using GptStep::GptStep;
};

const bool registered =
    harness::add<GptStep>() && harness::add<LlamaStep>() && harness::add<GptGrid>();

}  // namespace
}  // namespace suite

// Claim: a GPT step cut over TP x PP x DP is the step of one device. Ten steps end with the loss
// and every parameter within the bound that rounding allows (reference.h); replicas hold the same
// bits after every step; bytes sent and bytes held are the sums of the papers' formulas; the
// pipeline does what its schedule says (Shoeybi et al. 2019; Narayanan et al. 2021; Rajbhandari et
// al. 2020).

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <memory>
#include <optional>

#include "harness/unit.h"
#include "layers/gpt_cost.h"
#include "suite/training_step/expectations.h"
#include "suite/training_step/reference.h"
#include "suite/training_step/timeline_record.h"
#include "suite/training_step/trainer.h"

namespace suite {
namespace {

using harness::Oracle;
using harness::Profile;
using machine::Axis;
using machine::Category;
using machine::Dtype;
using machine::Transport;

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// This rank's part of a whole parameter.
std::vector<double> shard(const std::vector<double>& whole, const collectives::Parameter& parameter,
                          int tp_rank) {
  const machine::Region region = parameter.region(tp_rank);
  const std::int64_t rows = parameter.value.shape().rank() == 1 ? 1 : parameter.value.rows();
  std::vector<double> part;
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t col = 0; col < parameter.value.cols(); ++col)
      part.push_back(whole[static_cast<std::size_t>((region.row + row) * region.global_cols +
                                                    region.col + col)]);
  return part;
}

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum);
}

struct GptStep {
  static constexpr std::string_view name = "gpt_step";
  static constexpr std::string_view about =
      "forward, backward, gradient reduction and AdamW of a GPT over TP x PP x DP";
  static constexpr Oracle oracles[] = {Oracle::numerics, Oracle::volume, Oracle::memory,
                                       Oracle::schedule, Oracle::determinism};
  struct Case {
    int ranks = 1;
    std::string model;
    Dtype dtype{};
    Transport transport{};
    std::string schedule;
    int zero_stage = 1;
    int tp = 1, pp = 1, dp = 1;
    int micro_batch_size = 1, global_batch_size = 8;
    int sequence_parallel = 0;
    std::string recompute_granularity, recompute_method;
    int recompute_num_layers = 1, distribute_saved_activations = 0, use_flash_attn = 0;
  };

  static TrainingConfig config_of(const Case& c, std::uint64_t seed) {
    TrainingConfig config;
    config.model = named_model(c.model);
    config.degrees = {.tp = c.tp, .dp = c.dp, .pp = c.pp};
    config.dtype = c.dtype;
    config.transport = c.transport;
    config.micro_batch_size = c.micro_batch_size;
    config.global_batch_size = c.global_batch_size;
    config.schedule = c.schedule;
    config.zero_stage = c.zero_stage;
    config.activations = {
        .sequence_parallel = c.sequence_parallel != 0,
        .recompute_granularity = layers::recompute_granularity(c.recompute_granularity),
        .recompute_method = layers::recompute_method(c.recompute_method),
        .recompute_num_layers = c.recompute_num_layers,
        .distribute_saved_activations = c.distribute_saved_activations != 0,
        .use_flash_attn = c.use_flash_attn != 0};
    config.options.clip_norm = 1.0;  // Megatron's --clip-grad
    config.seed = seed;
    return config;
  }

  static harness::Sweep<Case> sweep(Profile profile) {
    std::vector<std::string> schedules;
    for (const pipeline::Schedule& schedule : pipeline::schedules())
      schedules.emplace_back(schedule.name);
    const bool quick = profile == Profile::quick;
    harness::Sweep<Case> sweep;
    sweep.axis("model", &Case::model, {"small"}, model_names())
        .axis("dtype", &Case::dtype, {Dtype::float32, Dtype::bfloat16},
              {Dtype::float32, Dtype::bfloat16, Dtype::float64})
        .axis("transport", &Case::transport, {Transport::shared_memory, Transport::mpi})
        .axis("schedule", &Case::schedule, schedules, schedules)
        .axis("zero-stage", &Case::zero_stage, {0, 1}, {0, 1})
        .axis("ranks", &Case::ranks, quick ? std::vector{1, 2, 4, 8} : std::vector{1, 2, 3, 4, 8})
        .axis("tensor-model-parallel-size", &Case::tp, {1, 2, 4})
        .axis("pipeline-model-parallel-size", &Case::pp, {1, 2, 4})
        .axis("data-parallel-size", &Case::dp,
              quick ? std::vector{1, 2, 4, 8} : std::vector{1, 2, 3, 4, 8})
        .axis("micro-batch-size", &Case::micro_batch_size, {1})
        .axis("global-batch-size", &Case::global_batch_size, {quick ? 8 : 24})
        .axis("sequence-parallel", &Case::sequence_parallel, {0, 1}, {0, 1})
        .axis("recompute-granularity", &Case::recompute_granularity, {"none", "selective", "full"},
              {"none", "selective", "full"})
        .axis("recompute-method", &Case::recompute_method, {"uniform"}, {"uniform", "block"})
        .axis("recompute-num-layers", &Case::recompute_num_layers, {1})
        .axis("distribute-saved-activations", &Case::distribute_saved_activations, {0, 1}, {0, 1})
        .axis("use-flash-attn", &Case::use_flash_attn, {0, 1}, {0, 1})
        .usual("use-flash-attn", "0")
        .usual("sequence-parallel", "0")
        .usual("recompute-granularity", "none")
        .usual("distribute-saved-activations", "0")
        .only([](const Case& c) -> std::string {
          if (c.ranks != c.tp * c.pp * c.dp)
            return fmt::format(
                "ranks {} is not tensor-model-parallel-size {} x pipeline-model-parallel-size {} x "
                "data-parallel-size "
                "{} = {}",
                c.ranks, c.tp, c.pp, c.dp, c.tp * c.pp * c.dp);
          try {
            config_of(c, 0).validate();
          } catch (const std::invalid_argument& error) {
            return error.what();
          }
          return "";
        });
    // Activations held in other ways: one case of each at the usual of all else.
    sweep.sample([quick](const Case& c) {
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

  static std::string why_not(const Case& c, const harness::Context& context) {
    return context.world.why_not(context.group, c.transport);
  }

  GptStep(const Case& c, harness::Context& context)
      : case_(c),
        context_(context),
        config_(config_of(c, context.seed)),
        corpus_(context.data_file.empty()
                    ? Corpus::generated(context.seed)
                    : Corpus::from_file(context.data_file, config_.model.sequence,
                                        config_.model.vocabulary)) {
    config_.weights = context.load_file;
    for (const Category category : machine::all_categories)
      held_before_[category] = context.device.ledger().current(category);
    trainer_ = make_trainer();
    context.device.ledger().reset_peaks();
    trainer_->step();
    first_step_hash_ = hash_of_values(*trainer_);
    trainer_->step();  // from here on collectives hold their scratch, as in every later step
    for (const Category category : machine::all_categories)
      peaks_[category] = context.device.ledger().peak(category) - held_before_[category];
  }

  std::unique_ptr<Trainer> make_trainer() {
    return std::make_unique<Trainer>(context_.world, context_.group, context_.device, config_,
                                     corpus_);
  }

  static std::uint64_t hash_of_values(const Trainer& trainer) {
    return hash(trainer.states().values());
  }

  void prepare() {}

  void run() {
    const double start = now_s();
    trainer_->forward_backward();
    const double passed = now_s();
    trainer_->optimizer_step().reduce();
    const double reduced = now_s();
    trainer_->update();
    times_ = {passed - start, reduced - passed, now_s() - reduced};
  }

  void judge(harness::Judge& judge) {
    last_timeline_ = trainer_->timeline();  // of the step that times_ are of
    judge_memory(judge);
    judge_volume(judge);
    judge_schedule(judge);
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

  void describe(harness::Record& record) {
    record.losses = losses_;
    record.breakdown =
        step_breakdown(last_timeline_, times_.reduce_s, times_.update_s, times_.passes_s);
    record.timeline = gather_timeline(context_.world, context_.group, last_timeline_);
    if (record.seconds > 0) {
      record.counters["steps_per_second"] = 1 / record.seconds;
      const double rate = context_.rates.flops_per_second(case_.dtype, case_.ranks);
      if (rate > 0) record.counters["mfu"] = cost().flops / record.seconds / rate;
    }
  }

 private:
  void judge_memory(harness::Judge& judge) {
    if (!context_.device.readable_by_host())
      return judge.not_applicable(Oracle::memory, "CUDA tensors are staged through host memory");
    for (const auto& [category, bytes] : expected_peaks(*trainer_))
      judge.memory(category, peaks_[category], bytes);
  }

  void judge_volume(harness::Judge& judge) {
    for (const Trainer::Group& group : trainer_->groups())
      if (group.communicator) group.communicator->link().reset_traffic();
    trainer_->step();
    auto expected = expected_bytes_sent(*trainer_);
    for (const Trainer::Group& group : trainer_->groups()) {
      if (!group.communicator) continue;
      auto& labels = expected[group.name];
      for (const auto& [label, traffic] : group.communicator->link().traffic())
        if (traffic.bytes_sent > 0) labels.try_emplace(label, 0);
      for (const auto& [label, bytes] : labels) {
        const auto& measured = group.communicator->link().traffic();
        const auto found = measured.find(label);
        judge.volume(group.name, label, found == measured.end() ? 0 : found->second.bytes_sent,
                     bytes);
      }
    }
  }

  void judge_schedule(harness::Judge& judge) {
    const pipeline::StageSchedule& plan = trainer_->executor().plan();
    const pipeline::Timeline& timeline = trainer_->timeline();
    judge.schedule(
        fmt::format("{}, stage {}", case_.schedule, trainer_->grid().coordinate(Axis::pp)),
        pipeline::executed(timeline.events), pipeline::text(plan));
    judge.schedule("micro-batches in flight", timeline.peak_in_flight,
                   pipeline::find_schedule(case_.schedule)
                       .peak_activations(trainer_->grid().coordinate(Axis::pp), case_.pp,
                                         config_.micro_batches()));
  }

  // Ten steps from the same seed as the reference's.
  void judge_training(harness::Judge& judge) {
    const auto trainer = make_trainer();
    std::map<std::string, ParameterHistory> mine;
    losses_.clear();
    for (int step = 0; step < reference_steps; ++step) {
      trainer->forward_backward();
      losses_.push_back(trainer->mean_loss());
      trainer->optimizer_step().reduce();
      if (step == 0) {
        trainer->optimizer_step().gather_gradients();
        for (const collectives::Parameter* parameter : trainer->parameters())
          mine[parameter->name].first_gradient = to_doubles(parameter->gradient);
      }
      trainer->update();
      for (const collectives::Parameter* parameter : trainer->parameters()) {
        if (step == 0) mine[parameter->name].after_one = to_doubles(parameter->value);
        if (step + 1 == reference_steps)
          mine[parameter->name].after_all = to_doubles(parameter->value);
        judge.same_bits(fmt::format("{}{} after step {}", parameter->name,
                                    shard_text(*parameter, *trainer), step + 1),
                        hash(parameter->value));
      }
      if (step == 0) {
        const std::string key = fmt::format("rank {}, two runs of step 1", context_.group.index);
        judge.same_bits(key, first_step_hash_);
        judge.same_bits(key, hash_of_values(*trainer));
      }
    }
    if (!context_.save_file.empty()) trainer->save(context_.save_file);
    const Reference reference = shared_reference();
    for (const collectives::Parameter* parameter : trainer->parameters())
      compare(judge, *parameter, mine, reference);
    for (std::size_t step = 0; step < losses_.size(); ++step) {
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
      check("raw gradient of step 1", got.first_gradient, want.first_gradient,
            bound.first_gradient);
      check("value after 1 step", got.after_one, want.after_one, bound.after_one);
      check("value after 10 steps", got.after_all, want.after_all, bound.after_all);
    }
  }

  int trainer_tp_rank() const {
    return machine::Grid(config_.degrees, context_.group.index).coordinate(Axis::tp);
  }

  std::string shard_text(const collectives::Parameter& parameter, const Trainer& trainer) const {
    return parameter.placement.tp == collectives::Spread::replicated
               ? ""
               : fmt::format(" (part {})", trainer.grid().coordinate(Axis::tp));
  }

  // Rank 0 has it or makes it; the others sleep until it is sent.
  Reference shared_reference() {
    std::string text;
    if (context_.group.index == 0) text = serialize(reference_of(context_.world, config_, corpus_));
    return deserialize_reference(context_.world.broadcast(context_.group, 0, text));
  }

  Case case_;
  harness::Context& context_;
  TrainingConfig config_;
  Corpus corpus_;
  std::map<Category, std::size_t> held_before_, peaks_;
  std::unique_ptr<Trainer> trainer_;
  std::uint64_t first_step_hash_ = 0;
  struct {
    double passes_s = 0, reduce_s = 0, update_s = 0;
  } times_;
  pipeline::Timeline last_timeline_;
  std::vector<double> losses_;
};

const bool registered = harness::add<GptStep>();

}  // namespace
}  // namespace suite

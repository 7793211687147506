#include "suite/training_step/step_unit.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <stdexcept>

#include "harness/measure/rates.h"
#include "layers/models/fp8_cost.h"
#include "layers/models/gpt_cost.h"
#include "machine/link/connect.h"
#include "suite/checkpoint/training_checkpoint.h"
#include "suite/plan/fitting.h"
#include "suite/trainer/expectations.h"
#include "suite/trainer/gpt2_weights.h"
#include "suite/trainer/layer_costs.h"
#include "suite/trainer/model_chunks.h"
#include "suite/trainer/timeline_record.h"
#include "suite/training_step/reference.h"
#include "suite/training_step/utilization.h"
#include "zero/offload/io_ring.h"

namespace suite {
namespace {

TrainingConfig config_of(const TrainingCase& c, const harness::Context& context) {
  TrainingConfig config = completed(c.config);
  config.seed = context.seed;
  if (!loads_checkpoint(context.load_file)) config.weights = context.load_file;
  return config;
}

Corpus corpus_of(const std::string& file, std::uint64_t seed, const TrainingConfig& config) {
  const TrainingConfig::Model& model = config.model;
  return file.empty() ? Corpus::generated(seed, model.tokens > 0 ? model.tokens : model.vocabulary)
                      : Corpus::from_file(file, config.drawn_sequence(), model.tokens, seed,
                                          config.schedule.train_iters.value_or(0) *
                                              config.batch.global_batch_size);
}

// Returns a rank's share of the least bytes of the reference in double on the host of rank 0
// (reference.h): values, gradients, the optimizer's states, and a copy of the gradients.
double reference_bytes(const TrainingConfig& config, const harness::Context& context) {
  if (parse_against(context.reference.kind) != Against::cpu) return 0;
  const machine::World& world = context.world;
  const std::vector<int>& members = context.group.members;
  const std::string& first = world.host(members.front());
  if (world.host(world.rank()) != first) return 0;
  const auto sharers = static_cast<double>(
      std::ranges::count_if(members, [&](int member) { return world.host(member) == first; }));
  const zero::KeptStates kept = zero::kept_states(config.optimizer.rule(), machine::Dtype::float64);
  const double states = int{kept.first_moment} + int{kept.second_moment};
  return (3 + states) * sizeof(double) *
         static_cast<double>(layers::parameters_count(config.model)) / sharers;
}

constexpr harness::Counter of_groups[] = {
    {"wire_bytes_tp", "B", harness::Better::neither, harness::Nature::exact,
     "most bytes that a rank sends in a step over tensor parallelism"},
    {"wire_bytes_cp", "B", harness::Better::neither, harness::Nature::exact,
     "most bytes that a rank sends in a step over context parallelism"},
    {"wire_bytes_pp", "B", harness::Better::neither, harness::Nature::exact,
     "most bytes that a rank sends in a step over the pipeline, and of a tied embedding"},
    {"wire_bytes_dp", "B", harness::Better::neither, harness::Nature::exact,
     "most bytes that a rank sends in a step over data parallelism"},
    {"wire_bytes_ep", "B", harness::Better::neither, harness::Nature::exact,
     "most bytes that a rank sends in a step over expert parallelism"}};
const bool of_groups_known = harness::add_counters(of_groups);

// Returns the counters of a step. Collective over the group.
std::map<std::string, double> sent_over_groups(machine::World& world, const machine::Group& group,
                                               const std::map<std::string, std::uint64_t>& sent) {
  std::map<std::string, double> mine, most;
  for (const auto& [name, bytes] : sent) {
    const std::string axis = name.starts_with("cp")    ? "cp"
                             : name == "edp"           ? "dp"
                             : name == "tp_cp"         ? "ep"
                             : name.starts_with("tp_") ? "tp"
                             : name == "hpz"           ? "dp"
                             : name.starts_with("qgz") ? "dp"
                             : name == "embedding"     ? "pp"
                                                       : name;
    mine["wire_bytes_" + axis] += static_cast<double>(bytes);
  }
  for (const harness::Counter& counter : of_groups) {
    const std::string name(counter.name);
    const double bytes = std::ranges::max(world.all_gather(group, mine[name]));
    if (bytes > 0) most[name] = bytes;
  }
  return most;
}

}  // namespace

std::string StepUnit::why_not(const Case& c, const harness::Context& context) {
  using enum zero::OffloadDevice;
  const zero::StepOptions& options = c.config.zero.options;
  if (options.offload_optimizer.device == nvme || options.offload_param.device == nvme)
    if (const std::string why = zero::IoRing::why_not(); !why.empty()) return why;
  if (std::string why = machine::why_not(context.world, context.group, c.config.transport);
      !why.empty())
    return why;
  const TrainingConfig config = config_of(c, context);
  if (config.activations.fused_epilogues && (context.device.kind() != machine::Device::Kind::cuda ||
                                             config.precision.dtype == machine::Dtype::float64))
    return fmt::format(
        "fused-epilogues requires cuBLASLt with float, bfloat16 or half (got {} on {})",
        machine::name(config.precision.dtype),
        context.device.kind() == machine::Device::Kind::cuda ? "cuda" : "host");
  const int stage = machine::Grid(config.degrees, context.group).coordinate(machine::Axis::pp);
  if (config.fp8.on() && context.device.kind() == machine::Device::Kind::cuda &&
      !machine::cuda::is_virtual())
    for (const layers::StageCase& chunk :
         chunk_cases(config, placement(config), stage,
                     {.compute_capability = context.device.compute_capability()}))
      if (const std::string why = layers::why_emulated_fp8(config.model, chunk); !why.empty())
        return why + "; the time of emulated products would say nothing about this GPU's";
  try {
    return configuration::why_too_large(
        config, stage, configuration::room_of_rank(context.world, context.group, context.device),
        reference_bytes(config, context), context.group.index == 0);
  } catch (const std::logic_error&) {
    return "";  // no plan: the step itself reports what is wrong with the configuration
  }
}

void StepUnit::check_files(const Case& c, const harness::Files& files) {
  const TrainingConfig config = completed(c.config);
  if (!files.data.empty()) Corpus::check(files.data, config.drawn_sequence());
  TrainingConfig trained = config;
  trained.seed = files.seed;
  check_saved_training(files, trained, [&] { return corpus_of(files.data, files.seed, trained); });
  const bool continues = loads_checkpoint(files.load);
  if (!files.load.empty() && !continues) check_gpt2(files.load, config.model, config.degrees.tp);
  if (!files.save.empty() && !saves_checkpoint(files.save)) refuse_unlike_gpt2(config.model);
  if (files.reference.file.empty()) return;
  if (!continues) trained.weights = files.load;
  check_curve(files.reference.file, read_curve(files.reference.file),
              curve_keys(trained, corpus_of(files.data, files.seed, trained)));
}

StepUnit::StepUnit(const Case& c, harness::Context& context)
    : context_(context),
      ranks_(c.ranks),
      config_(config_of(c, context)),
      corpus_(corpus_of(context.data_file, context.seed, config_)) {
  measure_layers(config_, context.world, context.group, context.device);
  if (!config_.weights.empty() || saves_weights()) refuse_unlike_gpt2(config_.model);
}

void StepUnit::warm_up(const std::function<void()>& begin) {
  const machine::Ledger& ledger = context_.device.ledger();
  CategoryPeaks before;
  for (const machine::Category category : machine::all_categories)
    before[category] = ledger.current(category);
  trainer_ = make_trainer();
  // The links' own memory is not that of a step.
  before[machine::Category::links] = ledger.current(machine::Category::links);
  trainer_->step();
  first_step_hash_ = trainer_->hash_of_values();
  const bool taken = take_step(*trainer_, [&] {
    context_.device.ledger().reset_peaks();
    begin();
  });
  if (!taken) return;
  rows_ = trainer_->routed_rows();
  for (const machine::Category category : machine::all_categories)
    peaks_[category] = ledger.peak(category) - before[category];
  updates_ = trainer_->optimizer_step().optimizer().steps() - 1;
}

std::unique_ptr<Trainer> StepUnit::make_trainer() const {
  return std::make_unique<Trainer>(context_.world, context_.group, context_.device, config_,
                                   corpus_);
}

void StepUnit::run() {
  recorder_.begin(context_.device);
  trainer_->step();
  recorder_.end(trainer_->timeline());
}

harness::Cost StepUnit::cost() const {
  harness::Cost cost;
  cost.flops = layers::model_flops(config_.model, config_.tokens()) / ranks_;
  // A GPU multiplies codes at more than the rate of the dtype.
  const bool of_codes = config_.fp8.on() && context_.device.kind() == machine::Device::Kind::cuda;
  cost.flops_dtype = of_codes ? machine::Dtype::float8_e4m3 : config_.precision.dtype;
  cost.tokens = static_cast<double>(config_.tokens());
  return cost;
}

void StepUnit::judge_step(harness::Judge& judge) {
  last_timeline_ = trainer_->timeline();
  by_library_ = groups_by_library(*trainer_);
  if (!peaks_.empty()) {  // sparse codes may have become longer in later steps
    const auto compression = machine::Category::compression;
    peaks_[compression] = context_.device.ledger().peak(compression);
  }
  judge_memory(judge, *trainer_, peaks_, rows_, updates_);
  sent_ = judge_volume(judge, *trainer_);
  judge_schedule(judge, *trainer_);
  trainer_.reset();
}

void StepUnit::judge_repeated(harness::Judge& judge, Trainer& trainer) const {
  const std::string key = fmt::format("rank {}, two runs of step 1", context_.group.index);
  judge.same_bits(key, first_step_hash_);
  judge.same_bits(key, trainer.hash_of_values());
}

LossCurve StepUnit::judge_without_double(harness::Judge& judge) {
  const bool is_stored = against() == Against::stored;
  StoredCurve stored;
  if (is_stored) {
    stored = read_curve(context_.reference.file);
    check_curve(context_.reference.file, stored, curve_keys(config_, corpus_));
  }
  const std::unique_ptr<Trainer> trainer = make_trainer();
  const int steps = is_stored ? static_cast<int>(stored.losses.size()) : reference_steps;
  LossCurve curve = train(*trainer, steps, [&](int step) {
    context_.world.board().mine().progress.fetch_add(1);
    if (step == 1) judge_repeated(judge, *trainer);
    judge_replicas(judge, *trainer, step);
  });
  if (is_stored)
    judge_stored(judge, config_, curve, stored, context_.reference.file);
  else
    judge_alone(judge, config_, curve);
  save_reference(curve.losses, curve.skipped);
  if (saves_weights()) trainer->save(context_.save_file);
  return curve;
}

bool StepUnit::saves_weights() const {
  return !context_.save_file.empty() && !saves_checkpoint(context_.save_file);
}

bool StepUnit::judge_saved(harness::Judge& judge, const std::vector<double>& exact,
                           const std::vector<double>& bounds) {
  if (!loads_checkpoint(context_.load_file) && !saves_checkpoint(context_.save_file)) return false;
  const std::unique_ptr<Trainer> trainer = make_trainer();
  saved_ = train_saved(judge, *trainer, context_, checkpoint_keys(config_, corpus_),
                       [&](std::int64_t step) {
                         judge_replicas(judge, *trainer, static_cast<int>(step), "saved ");
                       });
  const auto first = static_cast<std::size_t>(saved_->begin);
  const auto compare = [&](std::string_view with, const std::vector<double>& losses,
                           const std::function<double(std::size_t)>& bound) {
    for (std::size_t step = first; step < std::min(first + saved_->losses.size(), losses.size());
         ++step)
      judge.numerics(fmt::format("loss of saved step {} against {}", step + 1, with),
                     std::abs(saved_->losses[step - first] - losses[step]), bound(step));
  };
  compare("double", exact, [&](std::size_t step) { return bounds[step]; });
  if (against() == Against::stored) {
    const StoredCurve stored = read_curve(context_.reference.file);
    const double tolerance =
        stored.tolerance.at(std::string(machine::name(config_.precision.dtype)));
    compare(context_.reference.file, stored.losses,
            [&](std::size_t step) { return tolerance * std::abs(stored.losses[step]); });
  }
  return true;
}

void StepUnit::describe_saved(harness::Description& description) const {
  if (!saved_) return;
  description.losses = saved_->losses;
  const std::size_t end = static_cast<std::size_t>(saved_->begin) + saved_->losses.size();
  description.note += fmt::format("{}losses of steps {} to {}",
                                  description.note.empty() ? "" : "; ", saved_->begin + 1, end);
  if (saved_->saves > 0)
    description.note += fmt::format(", {} checkpoint{} written to {}", saved_->saves,
                                    saved_->saves == 1 ? "" : "s", context_.save_file);
}

void StepUnit::save_reference(const std::vector<double>& losses,
                              const std::vector<int>& skipped) const {
  if (context_.reference.save.empty() || context_.group.index != 0) return;
  if (!std::ranges::all_of(losses, [](double loss) { return std::isfinite(loss); })) return;
  write_curve(context_.reference.save, curve_of(config_, corpus_, against(), losses, skipped));
}

void StepUnit::describe_reference(harness::Description& description) const {
  if (against() == Against::none)
    description.note =
        "--reference none: losses, gradients and values are not compared with a reference; judged "
        "are bits of replicas, finite losses and norms, and that the loss falls";
  else if (against() == Against::stored)
    description.note = "--reference stored: gradients and values are not compared with a reference";
}

void StepUnit::describe_step(harness::Description& description) const {
  recorder_.describe(description, context_.world, context_.group, config_);
  if (!by_library_.empty())
    description.note +=
        fmt::format("{}the library's collectives in groups {}",
                    description.note.empty() ? "" : "; ", fmt::join(by_library_, ", "));
  if (config_.graph)
    description.note +=
        fmt::format("{}bytes, memory and the order of actions are those of the graph's capture",
                    description.note.empty() ? "" : "; ");
  for (const auto& [counter, bytes] : sent_over_groups(context_.world, context_.group, sent_))
    description.set(counter, bytes);
  if (!config_.graph)  // a launch has no times of actions
    description.timeline = gather_timeline(context_.world, context_.group, last_timeline_);
  if (description.seconds <= 0) return;
  description.set("steps_per_second", 1 / description.seconds);
  const machine::Dtype dtype = config_.precision.dtype;
  const Utilization used = utilization(cost().flops / description.seconds,
                                       context_.rates.flops_per_second(dtype, ranks_),
                                       context_.device.compute_units(), dtype);
  if (used.of_peak > 0) description.set("mfu", used.of_peak);
  if (used.of_gemm > 0) description.set("mfu_of_gemm", used.of_gemm);
  if (used.peak > 0) description.set("peak_TFLOPs", used.peak / 1e12);
  if (!used.note.empty()) description.note += (description.note.empty() ? "" : "; ") + used.note;
}

}  // namespace suite

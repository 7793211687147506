#include "suite/training_step/step_unit.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "harness/measure/rates.h"
#include "layers/models/gpt_cost.h"
#include "machine/link/connect.h"
#include "suite/trainer/expectations.h"
#include "suite/trainer/gpt2_weights.h"
#include "suite/trainer/layer_costs.h"
#include "suite/trainer/timeline_record.h"
#include "suite/training_step/utilization.h"
#include "zero/offload/io_ring.h"

namespace suite {
namespace {

TrainingConfig config_of(const TrainingCase& c, const harness::Context& context) {
  TrainingConfig config = completed(c.config);
  config.seed = context.seed;
  config.weights = context.load_file;
  return config;
}

}  // namespace

std::string StepUnit::why_not(const Case& c, const harness::Context& context) {
  using enum zero::OffloadDevice;
  const zero::StepOptions& options = c.config.zero.options;
  if (options.offload_optimizer.device == nvme || options.offload_param.device == nvme)
    if (const std::string why = zero::IoRing::why_not(); !why.empty()) return why;
  return machine::why_not(context.world, context.group, c.config.transport);
}

void StepUnit::check_files(const Case& c, const harness::Files& files) {
  const TrainingConfig config = completed(c.config);
  if (!files.data.empty()) Corpus::check(files.data, config.model.sequence);
  if (!files.load.empty()) check_gpt2(files.load, config.model, config.degrees.tp);
  if (!files.save.empty()) refuse_unlike_gpt2(config.model);
}

StepUnit::StepUnit(const Case& c, harness::Context& context)
    : context_(context),
      ranks_(c.ranks),
      config_(config_of(c, context)),
      corpus_(context.data_file.empty()
                  ? Corpus::generated(context.seed)
                  : Corpus::from_file(context.data_file, config_.model.sequence,
                                      config_.model.tokens)) {
  measure_layers(config_, context.world, context.group, context.device);
  if (!context.load_file.empty() || !context.save_file.empty()) refuse_unlike_gpt2(config_.model);
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
  for (const machine::Category category : machine::all_categories)
    peaks_[category] = ledger.peak(category) - before[category];
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
  cost.flops_dtype = config_.precision.dtype;
  cost.tokens = static_cast<double>(config_.tokens());
  return cost;
}

void StepUnit::judge_step(harness::Judge& judge) {
  last_timeline_ = trainer_->timeline();
  by_library_ = groups_by_library(*trainer_);
  judge_memory(judge, *trainer_, peaks_);
  judge_volume(judge, *trainer_);
  judge_schedule(judge, *trainer_);
  trainer_.reset();
}

void StepUnit::judge_repeated(harness::Judge& judge, Trainer& trainer) const {
  const std::string key = fmt::format("rank {}, two runs of step 1", context_.group.index);
  judge.same_bits(key, first_step_hash_);
  judge.same_bits(key, trainer.hash_of_values());
}

void StepUnit::describe_step(harness::Description& description) const {
  recorder_.describe(description, context_.world, context_.group, config_);
  if (!by_library_.empty())
    description.note +=
        fmt::format("{}the library's collectives in groups {}",
                    description.note.empty() ? "" : "; ", fmt::join(by_library_, ", "));
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

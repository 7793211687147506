#include "suite/training_step/compressed/compressed_training.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "suite/reference/compressed_sums.h"
#include "suite/training_step/loss_curve.h"
#include "suite/training_step/plain_reference.h"
#include "suite/training_step/reference.h"

namespace suite {

namespace {

// Returns the sums of a parameter's gradients before compression.
std::vector<double> exact_gradient(const Trainer& trainer, const CompressedSums& sums,
                                   const collectives::Parameter& parameter) {
  const zero::Layout& layout = trainer.states().layout();
  const std::int64_t begin =
      layout.offsets[static_cast<std::size_t>(trainer.states().row(&parameter))];
  for (std::size_t i = 0; i < layout.segments.size(); ++i) {
    const zero::Range range = layout.segments[i].range;
    if (begin < range.begin || begin >= range.end) continue;
    const auto from = sums.exact(i).begin() + (begin - range.begin);
    return {from, from + parameter.value.size()};
  }
  throw std::logic_error("no segment has " + parameter.name);
}

}  // namespace

bool compresses_gradients(const TrainingConfig& config) {
  return config.shards() > 1 && !config.zero.options.gradient_compression.algorithm.empty();
}

void add_compression_slices(harness::Sweep<TrainingCase>& sweep) {
  using enum harness::Profile;
  const auto coded = [&](const std::vector<std::string>& names, const char* batch) {
    return Variations{vary("model", {"tiny"}), vary("global-batch-size", {batch}),
                      vary("gradient-compression", names)};
  };
  const std::vector<std::string> all = zero::gradient_compressions();
  const auto over_dp = grids({3}, {1}, {1}, {3});
  const std::string name = "compressed gradients";
  sweep
      .slice({quick, smoke}, name,
             coded({"deviation"}, "8") + grids({4}, {2}, {1}, {2}) +
                 Variations{vary("sequence-parallel", {"on"}), vary("uneven-tokens", {"on"})})
      .slice({quick, smoke}, name, coded({"top_k"}, "8") + grids({4}, {1}, {2}, {2}))
      .slice({quick, smoke}, name,
             coded({"int8_block", "quantized_reduce_scatter", "half_wire"}, "6") + over_dp +
                 Variations{vary("zero-stage", {"0"})})
      .slice({quick, smoke}, name,
             coded({"top_k"}, "8") + grids({2}, {1}, {1}, {2}) +
                 Variations{vary("dtype", {"bfloat16"}), vary("offload_optimizer", {"cpu"})})
      .slice({acceptance, paper}, name,
             coded(all, "24") + grids({2, 3, 4, 8}, {1, 2}, {1, 2}, {1, 2, 3, 4}, {1, 2}) +
                 Variations{vary("zero-stage", {"0", "1"}), vary("dtype", {"float", "bfloat16"}),
                            vary("use-flash-attn", {"on"})});
}

CompressedTraining judge_compressed_training(harness::Judge& judge, harness::Context& context,
                                             const TrainingConfig& config, const Corpus& corpus,
                                             const std::function<void(Trainer&, int)>& after_step) {
  TrainingConfig watched = config;
  zero::GradientCompression& compression = watched.zero.options.gradient_compression;
  CompressedSums sums(judge, context.world,
                      machine::Grid(config.degrees, context.group).replica_group(), compression);
  compression.watch = &sums;
  Trainer trainer(context.world, context.group, context.device, watched, corpus);
  const bool is_plain = why_not_plain(config).empty();
  const auto alive = [&] { context.world.board().mine().progress.fetch_add(1); };

  CompressedTraining training;
  std::vector<JudgedStep> mine;
  GradientSums whole;
  for (int step = 0; step < reference_steps; ++step) {
    JudgedStep& now = mine.emplace_back();
    trainer.forward_backward();
    now.loss = trainer.mean_loss();
    trainer.reduce();
    if (is_plain) {
      trainer.optimizer_step().gather_gradients();
      std::vector<ValuesPart> parts;
      for (const collectives::Parameter* parameter : trainer.parameters()) {
        if (!parameter->gradient) continue;  // frozen
        now.gradients[parameter->name] = exact_gradient(trainer, sums, *parameter);
        parts.push_back(part_of(trainer, *parameter, unscaled_gradient(trainer, *parameter)));
      }
      whole.push_back(joined(context.world.all_gather(context.group, parts)));
    }
    const zero::StepResult result = trainer.update();
    now.gradient_norm = result.gradient_norm;
    judge.exact(fmt::format("whether step {} is taken", step + 1),
                std::vector{result.updated ? 1.0 : 0.0}, std::vector{1.0});
    judge_replicas(judge, trainer, step + 1);
    if (is_plain)
      for (const collectives::Parameter* parameter : trainer.parameters())
        now.values[parameter->name] = to_doubles(parameter->value);
    after_step(trainer, step);
    alive();
  }
  if (!is_plain) {
    for (const JudgedStep& step : mine) std::get<0>(training).push_back(step.loss);
    return training;
  }
  return judge_driven(judge, context, config, corpus, trainer, mine, whole);
}

}  // namespace suite

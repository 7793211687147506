#include "suite/training_step/compressed/eight_bit_training.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>

#include "suite/reference/plain/training.h"
#include "suite/training_step/loss_curve.h"
#include "suite/training_step/plain_reference.h"
#include "suite/training_step/reference.h"
#include "suite/training_step/step_oracles.h"
#include "suite/zero/eight_bit_update.h"

namespace suite {
namespace {

using Values = std::vector<double>;

std::size_t index(std::int64_t element) { return static_cast<std::size_t>(element); }

// Returns the elements of a row of the plan in flat buffers.
zero::Range elements_of(const Trainer& trainer, std::size_t row) {
  const std::int64_t begin = trainer.states().layout().offsets[row];
  return {begin, begin + trainer.plan().rows[row].elements};
}

Values part(const Values& flat, zero::Range range) {
  return {flat.begin() + range.begin, flat.begin() + range.end};
}

// The codes of a parameter's elements in one range that this rank owns. Blocks count from the
// parameter's first element.
struct Owned {
  std::size_t row = 0;
  zero::Range range;  // of the flat buffers
  EightBitStates states;
};

// A rank's moments of a range, decoded if they are codes.
struct Moments {
  std::int64_t begin = 0;
  Values first, second;
  static auto members(auto& self) { return std::tie(self.begin, self.first, self.second); }
};

struct Kept {
  std::vector<Owned> coded;
  std::vector<Moments> moments;
};

Kept kept_by(Trainer& trainer) {
  Kept kept;
  trainer.optimizer_step().optimizer().visit(false, [&](zero::Range range,
                                                        const zero::RangeStates& states) {
    if (!states.scales) {
      kept.moments.push_back(
          {range.begin, to_doubles(states.first_moment), to_doubles(states.second_moment)});
      return;
    }
    const EightBitStates all = eight_bit_states(states);
    kept.moments.push_back({range.begin, decoded_moment(all, false), decoded_moment(all, true)});
    const std::size_t blocks = all.scales.size() / 2;
    for (std::size_t row = 0; row < trainer.plan().rows.size(); ++row) {
      const zero::Range here = intersection(elements_of(trainer, row), range);
      if (here.size() == 0) continue;
      const zero::Range own{here.begin - range.begin, here.end - range.begin};
      Owned& owned = kept.coded.emplace_back(Owned{
          row,
          here,
          {part(all.master, own), part(all.first_codes, own), part(all.second_codes, own), {}}});
      // As in the paper a parameter has blocks of its own.
      const std::int64_t first = own.begin / machine::moment_block,
                         count = machine::moment_blocks(own.size());
      for (const std::size_t of : {std::size_t{0}, blocks})
        for (std::int64_t i = first; i < first + count; ++i)
          owned.states.scales.push_back(all.scales[of + index(i)]);
    }
  });
  return kept;
}

// Returns what drives the plain training: sums of gradients, and moments. Collective over the
// group.
ValuesByName driving_of(const harness::Context& context, Trainer& trainer, const Kept& kept,
                        const machine::Group& replicas) {
  Values first(index(trainer.states().layout().elements)), second = first;
  for (const std::vector<Moments>& of_rank : context.world.all_gather(replicas, kept.moments))
    for (const Moments& moments : of_rank) {
      std::ranges::copy(moments.first, first.begin() + moments.begin);
      std::ranges::copy(moments.second, second.begin() + moments.begin);
    }
  const auto of = [&](const collectives::Parameter& parameter) {
    return elements_of(trainer, index(trainer.states().row(&parameter)));
  };
  ValuesByName driving = joined(gathered(context, trainer, [&](const auto& parameter) {
    return unscaled_gradient(trainer, parameter);
  }));
  for (const auto& [suffix, flat] : {std::pair(plain::Training::first_moment, &first),
                                     {plain::Training::second_moment, &second}})
    for (auto& [name, values] : joined(gathered(
             context, trainer, [&](const auto& parameter) { return part(*flat, of(parameter)); })))
      driving[name + suffix] = std::move(values);
  return driving;
}

// gradients: of all parameters of this rank, by row, as summed.
void judge_codes(harness::Judge& judge, const std::string& step, const Trainer& trainer,
                 const std::vector<Owned>& before, const std::vector<Owned>& after,
                 const std::vector<Values>& gradients, const EightBitUpdate& options) {
  judge.exact("ranges with codes of " + step, std::vector{static_cast<double>(after.size())},
              std::vector{static_cast<double>(before.size())});
  for (std::size_t i = 0; i < before.size(); ++i) {
    const auto& [row, range, states] = before[i];
    EightBitUpdate update = options;
    const std::int64_t begin = trainer.states().layout().offsets[row];
    update.gradient = part(gradients[row], {range.begin - begin, range.end - begin});
    update.decays.assign(states.master.size(), trainer.plan().rows[row].weight_decay ? 1 : 0);
    judge_eight_bit_update(judge, fmt::format("{} of {}", trainer.plan().rows[row].parameter, step),
                           update, states, after[i].states);
  }
}

// Every parameter of min_8bit_size has codes, and no other. No shard cuts a block.
void judge_which(harness::Judge& judge, const Trainer& trainer, const Kept& kept) {
  std::vector<double> got, wanted;
  for (std::size_t row = 0; row < trainer.plan().rows.size(); ++row) {
    const zero::Range all = elements_of(trainer, row);
    const bool owned = std::ranges::any_of(kept.moments, [&](const Moments& moments) {
      return intersection(all, {moments.begin, moments.begin + std::ssize(moments.first)}).size() >
             0;
    });
    if (!owned) continue;
    got.push_back(std::ranges::count(kept.coded, row, &Owned::row) > 0 ? 1 : 0);
    wanted.push_back(all.size() >= trainer.config().optimizer.min_8bit_size ? 1 : 0);
  }
  judge.exact("parameters with codes", got, wanted);
  const auto cuts = [&](const Owned& owned) {
    return (owned.range.begin - elements_of(trainer, owned.row).begin) % machine::moment_block != 0;
  };
  judge.exact("shards that cut a block",
              std::vector{static_cast<double>(std::ranges::count_if(kept.coded, cuts))},
              std::vector{0.0});
}

}  // namespace

void add_eight_bit_slices(harness::Sweep<TrainingCase>& sweep) {
  using enum harness::Profile;
  // The tables and most matrices have codes, the rest has not.
  const auto coded = [](const std::string& arguments, const char* batch = "8") {
    return Variations{vary("model", {"tiny"}), vary("global-batch-size", {batch}),
                      vary("optimizer", {"adamw_8bit"}),
                      vary("model-args", {"--min-8bit-size 2048" + arguments})};
  };
  const std::string name = "moments of 8 bits";
  const Variations rows_cut{vary("sequence-parallel", {"on"}), vary("uneven-tokens", {"on"})};
  sweep
      .slice({quick, smoke}, name,
             coded(" --clip-grad 0.5") + grids({4}, {2}, {1}, {2}) + rows_cut +
                 Variations{vary("zero-stage", {"1"})})
      .slice({smoke}, name,
             coded(" --train-iters 20 --lr-warmup-iters 3", "6") + grids({3}, {1}, {1}, {3}) +
                 Variations{vary("dtype", {"bfloat16"}), vary("zero-stage", {"3"})})
      .slice({smoke}, name,
             coded(" --adam-beta2 0.95") + grids({4}, {1}, {2}, {2}) +
                 Variations{vary("dtype", {"half"}), vary("grad-accum-dtype", {"fp16"}),
                            vary("zero-stage", {"2"})})
      .slice({smoke}, name,
             coded("") + grids({2}, {2}, {1}, {1}) + Variations{vary("zero-stage", {"0"})})
      .slice(
          {acceptance, paper}, name,
          coded("") + grids({1, 2, 4, 8}, {1, 2}, {1, 2}, {1, 2, 4}, {1, 2}) +
              Variations{vary("dtype", {"float", "bfloat16"}),
                         vary("zero-stage", {"0", "1", "2", "3"}), vary("use-flash-attn", {"on"})});
}

CompressedTraining judge_eight_bit_training(harness::Judge& judge, harness::Context& context,
                                            const TrainingConfig& config, const Corpus& corpus,
                                            const std::function<void(Trainer&, int)>& after_step) {
  const machine::Group replicas = machine::Grid(config.degrees, context.group).replica_group();
  Trainer trainer(context.world, context.group, context.device, config, corpus);
  const bool is_plain = why_not_plain(config).empty();
  const LearningRate rate = config.learning_rate();
  const TrainingConfig::Optimizer& optimizer = config.optimizer;

  std::vector<JudgedStep> steps;
  GradientSums driving;
  int updates = 0;
  for (int at = 0; at < reference_steps; ++at) {
    const std::string step = fmt::format("step {}", at + 1);
    JudgedStep& now = steps.emplace_back();
    trainer.forward_backward();
    now.loss = trainer.mean_loss();
    trainer.reduce();
    now.skipped = gradients_overflow(trainer, context.world, context.group);
    trainer.optimizer_step().gather_gradients();
    std::vector<Values> gradients;
    for (const collectives::Parameter* parameter : trainer.parameters()) {
      gradients.push_back(parameter->gradient ? to_doubles(parameter->gradient) : Values());
      if (parameter->gradient)
        now.gradients[parameter->name] = unscaled_gradient(trainer, *parameter);
    }
    const Kept before = kept_by(trainer);
    if (at == 0) judge_which(judge, trainer, before);
    if (is_plain)
      trainer.with_values(
          [&] { driving.push_back(driving_of(context, trainer, before, replicas)); });
    const double divisor = trainer.optimizer_step().divisor() * trainer.loss_scale();
    const zero::StepResult result = trainer.update();
    now.gradient_norm = result.gradient_norm;
    judge.exact(fmt::format("whether {} is taken", step), std::vector{result.updated ? 1.0 : 0.0},
                std::vector{now.skipped ? 0.0 : 1.0});
    if (now.skipped) {
      now.gradient_norm.reset();
    } else {
      const zero::AdamW8Bit rule{rate.after(updates), optimizer.betas[0], optimizer.betas[1],
                                 optimizer.epsilon, optimizer.weight_decay};
      judge_codes(judge, step, trainer, before.coded, kept_by(trainer).coded, gradients,
                  {rule, ++updates, result.clip_factor / divisor, {}, {}});
    }
    judge_replicas(judge, trainer, at + 1);
    if (is_plain)
      trainer.with_values([&] {
        for (const collectives::Parameter* parameter : trainer.parameters())
          now.values[parameter->name] = to_doubles(parameter->value);
      });
    after_step(trainer, at);
    context.world.board().mine().progress.fetch_add(1);
  }
  CompressedTraining training;
  if (is_plain) {
    trainer.with_values(
        [&] { training = judge_driven(judge, context, config, corpus, trainer, steps, driving); });
    return training;
  }
  for (const JudgedStep& step : steps) std::get<0>(training).push_back(step.loss);
  return training;
}

}  // namespace suite

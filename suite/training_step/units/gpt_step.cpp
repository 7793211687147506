#include "suite/training_step/units/gpt_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "suite/checkpoint/training_checkpoint.h"
#include "suite/training_step/compressed/compressed_training.h"
#include "suite/training_step/compressed/eight_bit_training.h"
#include "suite/training_step/compressed/one_bit_training.h"
#include "suite/training_step/plain_reference.h"

namespace suite {

using harness::Profile;

harness::Sweep<GptStep::Case> GptStep::sweep(const harness::PlanRequest& request) {
  using enum Profile;
  harness::Sweep<Case> sweep = step_sweep(request, {{"global-batch-size", "24"}});
  const auto floats = vary("dtype", {"float", "bfloat16"});
  const auto in_bfloat16 = vary("dtype", {"bfloat16"});
  const auto stages = vary("zero-stage", {"0", "1", "2", "3"});
  const auto schedules = vary("schedule", {"gpipe", "1f1b"});  // gpt_grid has all schedules
  const auto every = grids({1, 2, 3, 4, 8}, {1, 2, 4}, {1, 2, 4}, {1, 2, 3, 4, 8});
  const auto several = grids({2, 3, 4, 8}, {1, 2, 4}, {1, 2, 4}, {1, 2, 3, 4, 8});
  const auto replicas = grids({2, 3, 4, 8}, {1, 2, 4}, {1}, {2, 3, 4, 8});
  const auto tp_and_dp = grids({4}, {2}, {1}, {2});
  const auto add = [&](const std::vector<Profile>& profiles, const char* name,
                       const Variations& variations, const Variations& more = {}) {
    sweep.slice(profiles, name, variations + more);
  };
  const std::vector full{acceptance, paper};
  add(full, "grids", {floats, schedules, vary("zero-stage", {"0", "1"})}, every);
  add(full, "transports",
      {vary("transport", {"mpi"}), floats, schedules, vary("zero-stage", {"0", "1"})}, several);
  const Variations held{vary("sequence-parallel", {"off", "on"}),
                        vary("recompute-granularity", {"none", "selective", "full"}),
                        vary("distribute-saved-activations", {"off", "on"}),
                        vary("cpu-checkpointing", {"off", "on"}),
                        vary("use-flash-attn", {"off", "on"})};
  add(full, "activations", held + Variations{floats}, every);
  // Covers all grids that shard something, and ZeRO stage 3 with all ways to hold activations.
  add(full, "shards", {floats, vary("zero-stage", {"2", "3"})}, replicas);
  add(full, "shards", {vary("transport", {"mpi"}), vary("zero-stage", {"2", "3"})}, tp_and_dp);
  add(full, "shards", held + Variations{vary("zero-stage", {"3"})}, tp_and_dp);
  // Covers tokens that do not count, and SGD: each on all grids, and both in every ZeRO stage.
  const std::vector<std::string> with_uneven{"adamw", "lamb", "muon"};
  for (const auto& [uneven, of] : {std::pair("on", with_uneven), {"off", {"sgd", "lion"}}})
    for (const auto& [pp, stage] : {std::pair(std::vector{1}, "2"), {std::vector{2, 4}, "1"}})
      for (const auto& [tp, rows] : {std::pair(std::vector{1}, "off"), {std::vector{2, 4}, "on"}})
        add(full, "uneven",
            {floats, vary("uneven-tokens", {uneven}), vary("optimizer", of),
             vary("zero-stage", {stage}), vary("sequence-parallel", {rows})},
            grids({1, 2, 3, 4, 8}, tp, pp, {1, 2, 3, 4, 8}));
  const Variations uneven_sgd{vary("uneven-tokens", {"on"}), vary("optimizer", {"sgd"})};
  add(full, "uneven", uneven_sgd, every);
  // Covers offloaded optimizer states in every ZeRO stage on all grids. Offloaded values are in
  // the same place as the states, or the states are on the device.
  const auto elsewhere = vary("offload_optimizer", {"cpu", "nvme"});
  add(full, "offload", {in_bfloat16, stages, elsewhere}, every);
  add(full, "offload", {vary("dtype", {"float"}), stages, elsewhere},
      grids({2, 4, 8}, {2}, {1, 2, 4}, {1, 2, 4}));
  for (const auto& [values, others] :
       {std::pair("cpu", std::vector<std::string>{"none", "nvme"}), {"nvme", {"none", "cpu"}}}) {
    const Variations stage_3{vary("zero-stage", {"3"}), vary("offload_param", {values})};
    add(full, "offload_param",
        stage_3 + Variations{in_bfloat16, vary("offload_optimizer", {values})}, tp_and_dp);
    add(full, "offload_param", stage_3 + Variations{vary("offload_optimizer", others)}, tp_and_dp);
  }

  const auto overlap = vary("tp-comm-overlap", {"on"}), batch = vary("global-batch-size", {"8"});
  const auto tp_and_pp = grids({4}, {2}, {2}, {1}), three = grids({8}, {2}, {2}, {2});
  const auto full_recompute = vary("recompute-granularity", {"full"});
  const auto rows_cut = vary("sequence-parallel", {"on"});
  // With the model small, three references took more than a quarter of this unit's quick time.
  const auto tiny = vary("model", {"tiny"});
  add({quick}, "each degree", {tiny, batch}, grids({1, 2}, {1, 2}, {1, 2}, {1, 2}));
  add({quick}, "all degrees", {tiny, batch, vary("transport", {"mpi"})}, three);
  add({quick}, "all degrees", {tiny, batch, in_bfloat16, vary("sequence-parallel", {"off", "on"})},
      three);
  add({quick}, "activations", {tiny, batch, vary("use-flash-attn", {"on"})}, tp_and_pp);
  add({quick}, "activations", {tiny, batch, rows_cut, vary("recompute-granularity", {"selective"})},
      tp_and_pp);
  add({quick}, "activations",
      {tiny, batch, in_bfloat16, full_recompute, vary("distribute-saved-activations", {"on"}),
       vary("cpu-checkpointing", {"on"})},
      tp_and_pp);
  // In the first step half of the ranks have no token that counts.
  add({quick}, "uneven", uneven_sgd + Variations{tiny, batch}, tp_and_dp);
  add({quick}, "shards", {tiny, batch, vary("zero-stage", {"3"}), rows_cut, full_recompute},
      tp_and_dp);
  // Several micro-batches are in flight, and every pass of a chunk gathers and reduces.
  add({quick, smoke}, "shards over stages", {tiny, batch, vary("zero-stage", {"2", "3"})},
      grids({4}, {1}, {2}, {2}));
  const Variations on_host{tiny,
                           batch,
                           in_bfloat16,
                           vary("zero-stage", {"3"}),
                           vary("offload_optimizer", {"cpu"}),
                           vary("offload_param", {"cpu"})};
  add({quick}, "offload_param", on_host, tp_and_dp);

  // A thread receives while passes gather and reduce.
  const Variations ahead{tiny, batch, vary("overlap-p2p-communication", {"on"})};
  add({acceptance, paper, smoke}, "messages ahead",
      ahead + Variations{in_bfloat16, vary("zero-stage", {"3"}),
                         vary("schedule", {"interleaved_1f1b"}),
                         vary("model-args", {"--num-layers 4"})},
      grids({4}, {1}, {2}, {2}));
  add({smoke}, "messages ahead", ahead + Variations{vary("transport", {"mpi"})},
      grids({2}, {1}, {2}, {1}));
  add(full, "messages ahead",
      {vary("overlap-p2p-communication", {"on"}), vary("transport", {"shared_memory", "mpi"}),
       schedules},
      grids({4, 8}, {1, 2}, {2, 4}, {1, 2}));
  // Covers gradients that are added up and sent in 16 bits, with states on the host, too.
  const auto sums = [](const char* dtype, const char* name) {
    return Variations{vary("dtype", {dtype}), vary("grad-accum-dtype", {name})};
  };
  const auto wires = vary("communication-data-type", {"default", "fp32"});
  for (const auto& [dtype, name, wire] :
       {std::tuple("bfloat16", "bf16", "default"), {"half", "fp16", "fp32"}}) {
    add(full, "gradients in 16 bits", sums(dtype, name) + Variations{stages, wires},
        grids({1, 2, 4, 8}, {1, 2}, {1, 2}, {1, 2, 4}));
    add({smoke}, "gradients in 16 bits",
        sums(dtype, name) +
            Variations{tiny, batch, stages, vary("communication-data-type", {wire})},
        tp_and_dp);
  }
  add({quick}, "gradients in 16 bits",
      sums("bfloat16", "bf16") + Variations{tiny, batch, vary("zero-stage", {"0", "3"})},
      tp_and_dp);
  add({quick}, "gradients in 16 bits",
      sums("bfloat16", "bf16") +
          Variations{tiny, batch, vary("zero-stage", {"2"}), vary("offload_optimizer", {"cpu"})},
      grids({2}, {1}, {1}, {2}));
  add({quick, smoke}, "gradients in 16 bits",
      sums("half", "fp16") + Variations{tiny, batch, vary("zero-stage", {"1"})},
      grids({4}, {1}, {2}, {2}));
  add({quick, smoke}, "gradients in 16 bits on the wire",
      {tiny, batch, vary("zero-stage", {"1"}), vary("communication-data-type", {"bf16", "fp16"})},
      grids({2}, {1}, {1}, {2}));

  // Covers several micro-batches of several sequences; three replicas; dropout, also recomputed
  // with sequence parallelism; weight decay with a warm-up of the learning rate; and an odd
  // number of micro-batches.
  const auto dropout = vary("model-args", {"--hidden-dropout 0.1 --attention-dropout 0.1"});
  const Variations pairs{tiny, vary("micro-batch-size", {"2"}), vary("global-batch-size", {"12"})};
  const std::vector edges{quick, smoke};
  const auto scheduled = vary("model-args", {"--hidden-dropout 0.1 --attention-dropout 0.1 "
                                             "--weight-decay 0.1 --lr-warmup-iters 3 "
                                             "--train-iters 20"});
  add(edges, "edges", pairs + Variations{scheduled, vary("uneven-tokens", {"on"})},
      grids({3}, {1}, {1}, {3}));
  add(edges, "edges", pairs + Variations{vary("dtype", {"half"}), vary("zero-stage", {"2"})},
      grids({3}, {1}, {1}, {3}));
  add(edges, "edges", pairs + Variations{dropout, rows_cut, full_recompute},
      grids({2}, {2}, {1}, {1}));
  add(edges, "edges",
      pairs + Variations{dropout, vary("use-flash-attn", {"on"}), vary("zero-stage", {"3"})},
      grids({4}, {2}, {1}, {2}));
  add(edges, "edges",
      {tiny, in_bfloat16, vary("schedule", {"gpipe"}), vary("zero-stage", {"0"}),
       vary("global-batch-size", {"9"})},
      grids({6}, {1}, {2}, {3}));
  // Covers norms and matrices over tp and dp, and a table that two stages hold.
  const auto of_all = vary("optimizer", {"adafactor", "lamb", "muon"});
  const Variations one_sum = pairs + Variations{vary("zero-stage", {"1"})};
  add(edges, "optimizers", one_sum + tp_and_dp + Variations{vary("optimizer", {"lion"})});
  add(edges, "optimizers", one_sum + three + Variations{of_all});
  add(edges, "optimizers",
      pairs + grids({3}, {1}, {1}, {3}) + Variations{of_all, vary("zero-stage", {"3"})});
  // Covers all algorithms of attention over cp, gradients reduced at dp 1, ZeRO over dp x cp.
  const Variations hidden_dropout{tiny, batch, vary("model-args", {"--hidden-dropout 0.1"})};
  add(edges, "contexts",
      hidden_dropout + over_cp("p2p", "zigzag") +
          Variations{rows_cut, vary("uneven-tokens", {"on"})},
      grids({4}, {2}, {1}, {1}, {2}));
  add(edges, "contexts",
      hidden_dropout + over_cp("all_gather", "striped") +
          Variations{vary("zero-stage", {"3"}), full_recompute},
      grids({4}, {1}, {1}, {2}, {2}));
  add(edges, "contexts",
      Variations{tiny, batch, in_bfloat16, vary("zero-stage", {"2"})} +
          over_cp("a2a", "contiguous"),
      grids({4}, {1}, {2}, {1}, {2}));
  add(edges, "contexts", Variations{tiny, batch} + over_cp("a2a+p2p", "zigzag"),
      grids({4}, {1}, {1}, {1}, {4}));
  for (const char* type : {"p2p", "a2a", "all_gather"})
    add(edges, "contexts", {tiny, batch, vary("recompute-granularity", {"selective"})},
        over_cp(type, "zigzag") + grids({2}, {1}, {1}, {1}, {2}));
  // Covers chunks of the sequence that are kept on the host and made again beside checkpoints.
  add(edges, "contexts",
      hidden_dropout + in_chunks("on") +
          Variations{full_recompute, vary("cpu-checkpointing", {"on"}), vary("zero-stage", {"2"})},
      grids({4}, {1}, {1}, {2}, {2}));
  // Covers chunks over stages, on the device, and with attention that is made again.
  const std::vector<Profile> larger{smoke, acceptance};
  add(larger, "contexts", Variations{tiny, batch} + in_chunks("on"),
      grids({4}, {1}, {2}, {1}, {2}));
  add(larger, "contexts",
      Variations{tiny, batch, in_bfloat16, vary("recompute-granularity", {"selective"})} +
          in_chunks("off"),
      grids({4}, {2}, {1}, {1}, {2}));
  // Covers checkpoints in one allocation, on the device and on the host, with room for more.
  const Variations adjacent{tiny, batch, full_recompute, vary("contiguous-checkpoints", {"on"})};
  add(edges, "checkpoints",
      adjacent +
          Variations{vary("distribute-saved-activations", {"on"}), vary("schedule", {"zb_h1"})},
      grids({4}, {2}, {2}, {1}));
  add(larger, "checkpoints",
      adjacent + Variations{vary("number-checkpoints", {"5"}), vary("cpu-checkpointing", {"on"})},
      grids({2}, {1}, {1}, {2}));
  // Covers an encoder: padding, token types, masked tokens, and the hidden layer of its head.
  const auto encoder = vary("model", {"bert_tiny"});
  add(full, "encoders",
      {encoder, floats, stages, vary("use-flash-attn", {"off", "on"}),
       vary("sequence-parallel", {"off", "on"}),
       vary("recompute-granularity", {"none", "selective", "full"})},
      grids({1, 2, 4, 8}, {1, 2, 4}, {1, 2}, {1, 2, 4}));
  add(edges, "encoders", {encoder, batch, dropout, vary("zero-stage", {"2"}), rows_cut}, three);
  add(edges, "encoders",
      {encoder, in_bfloat16, vary("use-flash-attn", {"on"}), vary("zero-stage", {"3"}),
       full_recompute, vary("micro-batch-size", {"2"}), vary("uneven-tokens", {"on"})},
      grids({3}, {1}, {1}, {3}));
  // Covers both stacks and the border between them, inside a stage and between two.
  const auto both = vary("model", {"t5_tiny"});
  add(full, "encoder-decoders",
      {both, floats, stages, vary("sequence-parallel", {"off", "on"}),
       vary("recompute-granularity", {"none", "selective", "full"})},
      grids({1, 2, 4, 8}, {1, 2, 4}, {1, 2, 4}, {1, 2, 4}));
  add(edges, "encoder-decoders", {both, batch, dropout, vary("zero-stage", {"3"}), rows_cut},
      three);
  add(edges, "encoder-decoders",
      {both, in_bfloat16, batch, vary("recompute-granularity", {"selective"})},
      grids({4}, {1}, {4}, {1}));
  add_compression_slices(sweep);
  add_one_bit_slices(sweep);
  add_eight_bit_slices(sweep);
  add_expert_slices(sweep);
  add_frozen_slices(sweep);
  add_8_bit_slices(sweep);
  add_sparse_slices(sweep);
  add_tensor_grid_slices(sweep);
  // Covers values in 8 and gradients in 4 bits on the wire: alone, with replicas over tp, and in
  // the passes of a pipeline with a table that two stages hold. Secondary shards:
  // zero_plus_plus_test.
  const auto coded = [](const char* weights, const char* gradients) {
    return Variations{vary("zero-stage", {"3"}), vary("zero_quantized_weights", {weights}),
                      vary("zero_quantized_gradients", {gradients})};
  };
  add(full, "quantized", coded("on", "on") + Variations{floats},
      grids({2, 4, 8}, {1, 2}, {1, 2}, {2, 4}));
  add({smoke}, "quantized", coded("on", "on") + Variations{tiny, batch, in_bfloat16},
      grids({4}, {1}, {1}, {4}));
  add({smoke}, "quantized", coded("off", "on") + Variations{tiny, batch, rows_cut}, tp_and_dp);
  add({smoke}, "quantized", coded("on", "off") + Variations{tiny, batch, rows_cut}, tp_and_dp);
  add({smoke}, "quantized", coded("on", "on") + Variations{tiny, batch}, grids({4}, {1}, {2}, {2}));
  add(full, "overlap", held + Variations{overlap}, tp_and_dp);
  if (request.device == machine::Device::Kind::cuda)
    add(full, "graph",
        {vary("transport", {"nccl"}), vary("graph", {"on"}), floats, stages,
         vary("schedule", {"1f1b", "zb_h1"})},
        grids({1, 2, 4, 8}, {1, 2}, {1, 2}, {1, 2}));
  add({smoke}, "overlap", {tiny, batch, rows_cut, overlap, vary("schedule", {"1f1b", "zb_h1"})},
      tp_and_pp);
  add({smoke}, "smoke", {tiny, batch, in_bfloat16}, three);
  add({smoke}, "smoke", on_host, tp_and_dp);
  add({smoke}, "smoke", Variations{tiny, batch} + uneven_sgd, tp_and_dp);
  return sweep;
}

void GptStep::judge(harness::Judge& judge) {
  judge_step(judge);
  if (sums_momenta(config_)) judge_one_bit_phases(judge, context_, config_, corpus_);
  const bool codes = config_.optimizer.is_8bit();
  if (against() == Against::cpu &&
      (compresses_gradients(config_) || sums_momenta(config_) || codes)) {
    judge_compressed(judge);
  } else if (against() == Against::cpu) {
    judge_training(judge);
    for (std::size_t step = 0; step < skipped_.size(); ++step)
      if (skipped_[step]) skipped_steps_.push_back(static_cast<int>(step) + 1);
    save_reference(losses_, skipped_steps_);
  } else {
    LossCurve curve = judge_without_double(judge);
    losses_ = std::move(curve.losses);
    skipped_steps_ = std::move(curve.skipped);
  }
  // Loaded states begin without the errors of momenta, and other degrees may round a code to its
  // neighbour, so later losses differ.
  if ((sums_momenta(config_) || codes) && loads_checkpoint(context_.load_file))
    judge_saved(judge);
  else
    judge_saved(judge, exact_losses_, loss_bounds_);
}

void GptStep::describe(harness::Description& description) {
  description.losses = losses_;
  if (against() == Against::cpu && !exact_losses_.empty())
    description.set("loss_error", loss_error_);
  if (config_.precision.dtype == machine::Dtype::float16)
    description.set("skipped_steps", static_cast<double>(skipped_steps_.size()));
  describe_reference(description);
  if (skipped_steps_.size() == losses_.size())
    description.note = "every step was skipped, because its gradients overflow";
  describe_saved(description);
  describe_step(description);
}

void GptStep::judge_compressed(harness::Judge& judge) {
  const auto after_step = [&](Trainer& trainer, int step) {
    if (step == 0) judge_repeated(judge, trainer);
    if (step + 1 == reference_steps && saves_weights()) trainer.save(context_.save_file);
  };
  std::tie(losses_, exact_losses_, loss_bounds_, loss_error_) =
      config_.optimizer.is_8bit()
          ? judge_eight_bit_training(judge, context_, config_, corpus_, after_step)
      : sums_momenta(config_)
          ? judge_one_bit_training(judge, context_, config_, corpus_, after_step)
          : judge_compressed_training(judge, context_, config_, corpus_, after_step);
  save_reference(losses_, {});
}

void GptStep::judge_training(harness::Judge& judge) {
  const auto trainer = make_trainer();
  std::map<std::string, ParameterHistory> mine;
  losses_.clear();
  TrainingRouting routing;  // of all ranks, as at degree 1
  double first_norm = 0;
  zero::LossScale scale(config_.precision.loss_scale);
  std::vector<double> scales;
  for (int step = 0; step < reference_steps; ++step) {
    scales.push_back(scale.scale());
    judge.exact(fmt::format("loss scale of step {}", step + 1), std::vector{trainer->loss_scale()},
                std::vector{scale.scale()});
    trainer->forward_backward();
    judge.exact(fmt::format("tokens that step {} divides by", step + 1),
                std::vector{trainer->optimizer_step().divisor()},
                std::vector{tokens_that_count(config_, corpus_, step)});
    losses_.push_back(trainer->mean_loss());
    routing.push_back(judged_routing(judge, *trainer, step + 1));
    trainer->reduce();
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
    if (step == 0) judge_repeated(judge, *trainer);
  }
  if (saves_weights()) trainer->save(context_.save_file);
  const Reference reference =
      reference_of(context_.world, context_.group, config_, corpus_, skipped_, routing);
  exact_losses_ = reference.exact.losses;
  loss_bounds_ = reference.bounds.losses;
  for (std::size_t step = 0; step < reference.exact.magnitudes.size(); ++step)
    judge_overflow(judge, config_, static_cast<int>(step) + 1, skipped_[step], scales[step],
                   reference.exact.magnitudes[step]);
  // The norm's relative error is at most that of the worst gradient.
  const double norm_bound = gradient_epsilon(config_) * reference.exact.gradient_norm;
  const int first = first_taken(skipped_) + 1;
  judge.numerics(fmt::format("gradient norm of step {} against double", first),
                 std::abs(first_norm - reference.exact.gradient_norm), norm_bound);
  judge.numerics(fmt::format("gradient norm of step {} against degree 1", first),
                 std::abs(first_norm - reference.same.gradient_norm), 2 * norm_bound);
  trainer->with_values([&] {
    for (const collectives::Parameter* parameter : trainer->parameters())
      compare_parameter(judge, *parameter, mine.at(parameter->name), reference,
                        first_taken(skipped_) + 1, trainer_tp_rank());
  });
  judge_logits(judge, routing, reference);
  loss_error_ = 0;
  for (std::size_t step = 0; step < losses_.size(); ++step) {
    loss_error_ = std::max(loss_error_, std::abs(losses_[step] / reference.exact.losses[step] - 1));
    judge.numerics(fmt::format("loss of step {} against double", step + 1),
                   std::abs(losses_[step] - reference.exact.losses[step]),
                   reference.bounds.losses[step]);
    judge.numerics(fmt::format("loss of step {} against degree 1", step + 1),
                   std::abs(losses_[step] - reference.same.losses[step]),
                   2 * reference.bounds.losses[step]);
  }
}

int GptStep::trainer_tp_rank() const {
  return machine::Grid(config_.degrees, context_.group).coordinate(machine::Axis::tp);
}

namespace {
const bool registered = harness::add<GptStep>();
}  // namespace
}  // namespace suite

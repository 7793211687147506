#pragma once
// For tests: one training step of a small GPT. Each rank of tp runs every stage and passes its
// activations to the next stage, so tests combine any tp and number of stages.

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "layers/attention/relative_bias.h"
#include "layers/models/gpt.h"
#include "layers/models/gpt_memory.h"
#include "layers/testing/sharded_case.h"

namespace layers::testing {

// Returns every way to recompute in a stage with this number of layers, including none, without
// distribution.
inline std::vector<ActivationOptions> recomputations(int layers) {
  using enum RecomputeGranularity;
  std::vector<ActivationOptions> all{{}, {.recompute_granularity = selective}};
  for (const RecomputeMethod method : {RecomputeMethod::uniform, RecomputeMethod::block}) {
    for (const int num_layers : std::set{1, layers - layers / 3})
      all.push_back({.recompute_granularity = full,
                     .recompute_method = method,
                     .recompute_num_layers = num_layers});
  }
  return all;
}

struct GptCase {
  GptConfig config;
  int tp = 1;
  machine::Dtype dtype = machine::Dtype::float64;
  machine::Dtype rounded_to = dtype;  // of the initial values
  int stages = 1;
  int sequences = 1;  // of a micro-batch
  int micro_batches = 1;
  bool halves_apart = false;
  double loss_scale = 1;  // gradients are divided by it
  ActivationOptions options{};
  Initializer initializer = Initializer::conformance(17, config.layers);

  std::int64_t rows() const { return std::int64_t{sequences} * config.sequence; }
  Draw draw(int micro_batch) const { return {5, micro_batch * rows()}; }
  std::vector<std::int32_t> tokens(int micro_batch) const {
    return random_tokens(rows(), 100u + static_cast<unsigned>(micro_batch), config.vocabulary);
  }
  std::vector<std::int32_t> decoder_tokens(int micro_batch) const {
    return random_tokens(rows(), 400u + static_cast<unsigned>(micro_batch), config.vocabulary);
  }
  std::vector<std::int32_t> buckets(bool causal) const {
    std::vector<std::int32_t> all(
        static_cast<std::size_t>(std::int64_t{config.sequence} * config.sequence));
    relative_buckets(config.sequence, causal, all);
    return all;
  }
  std::vector<std::int32_t> types(int micro_batch) const {
    return random_tokens(rows(), 300u + static_cast<unsigned>(micro_batch), 2);
  }
  // Different for all sequences of a few micro-batches.
  std::vector<std::int32_t> lengths(int micro_batch) const {
    std::vector<std::int32_t> lengths;
    for (int i = 0; i < sequences; ++i)
      lengths.push_back(config.sequence - 3 * (micro_batch * sequences + i) % config.sequence);
    return lengths;
  }
  // Every seventh token does not count.
  std::vector<std::int32_t> targets(int micro_batch) const {
    std::vector<std::int32_t> targets =
        random_tokens(rows(), 200u + static_cast<unsigned>(micro_batch), config.vocabulary);
    for (std::size_t i = 0; i < targets.size(); i += 7) targets[i] = -1;
    return targets;
  }
};

// Runs one call like a stage: all-reduces in place, other operations from one tensor to another. A
// communicator keeps the scratch of a call from the first call of its size. This call therefore
// runs before anything is counted.
inline void run_once(const Rank& rank, const CollectiveCalls& call) {
  const auto tensor = [&](std::int64_t elements) {
    machine::Tensor data(rank.world.device(), call.dtype, {elements}, machine::Category::buffers);
    rank.context.kernels().fill(data, 1);
    return data;
  };
  const machine::Tensor whole = tensor(call.elements);
  if (call.operation == machine::Operation::all_reduce) return rank.tp.all_reduce(whole);
  const machine::Tensor share = tensor(call.elements / rank.tp.size());
  if (call.operation == machine::Operation::all_gather)
    rank.tp.all_gather(share, whole);
  else
    rank.tp.reduce_scatter(whole, share);
}

// The stages of one rank.
class GptRanks {
 public:
  GptRanks(const Rank& rank, const GptCase& run) : rank_(rank), case_(run) {
    for (int i = 0; i < run.stages; ++i) {
      stages_.push_back(std::make_unique<GptStage>(run.config, rank.world.device(), rank.tp,
                                                   run.dtype, StageIndex{i, run.stages},
                                                   run.options, host_.get()));
      stages_.back()->initialize(run.initializer);
      round_values(rank, stages_.back()->parameters(), run.rounded_to);
      stages_.back()->zero_gradients();
      stages_.back()->set_loss_scale(run.loss_scale);
    }
    for (int i = 0; i < run.stages; ++i) {
      const StageCase stage{.tp = run.tp,
                            .stage = {i, run.stages},
                            .sequences = run.sequences,
                            .dtype = run.dtype,
                            .options = run.options,
                            .experts = {.degrees = {1, run.tp}}};
      for (const auto& calls : {forward_calls, backward_input_calls, backward_weights_calls})
        for (const CollectiveCalls& one : calls(run.config, stage)) run_once(rank, one);
    }
    for (int m = 0; m < run.micro_batches; ++m) {
      tokens_.push_back(run.tokens(m));
      targets_.push_back(run.targets(m));
      types_.push_back(run.types(m));
      lengths_.push_back(run.lengths(m));
      decoder_tokens_.push_back(run.decoder_tokens(m));
      routing_.emplace_back(static_cast<std::size_t>(run.config.layers));
    }
  }

  // Makes later forwards take the decisions of the last ones.
  void keep_routing() {
    for (std::vector<RoutingRecord>& micro_batch : routing_)
      for (RoutingRecord& record : micro_batch) record.given = true;
  }

  GptStage& stage(int i) { return *stages_[static_cast<std::size_t>(i)]; }
  const machine::Ledger& checkpoint_host() const { return host_->ledger(); }

  // All micro-batches forward, all backward, as GPipe does. Returns the summed loss.
  double step() {
    double loss = 0;
    for (int m = 0; m < case_.micro_batches; ++m) loss += forward(m);
    for (int m = 0; m < case_.micro_batches; ++m) backward(m);
    return loss;
  }

  TokenBatch batch(int m) {
    const auto index = static_cast<std::size_t>(m);
    TokenBatch batch{tokens_[index].data(), targets_[index].data(), case_.sequences, case_.draw(m)};
    if (case_.config.has_experts()) batch.routing = &routing_[index];
    if (case_.config.architecture != Architecture::decoder) {
      batch.types = types_[index].data();
      batch.lengths = lengths_[index].data();
      batch.decoder_tokens = decoder_tokens_[index].data();
      batch.encoder_buckets = encoder_buckets_.data();
      batch.decoder_buckets = decoder_buckets_.data();
    }
    return batch;
  }

  double forward(int m) {
    const TokenBatch batch = this->batch(m);
    machine::Tensor in;
    for (const auto& stage : stages_) {
      const machine::Tensor out =
          stage->stage().last() ? machine::Tensor(rank_.world.device(), machine::Dtype::float64,
                                                  {1}, machine::Category::optimizer)
                                : boundary();
      stage->forward(m, batch, in, out);
      in = out;
    }
    double own = 0, loss = machine::to_doubles(in).front();
    for (const RoutingRecord& record : routing_[static_cast<std::size_t>(m)])
      if (!record.chosen.empty()) own += static_cast<double>(case_.rows()) * record.losses;
    for (const double terms :
         rank_.world.all_gather(machine::first_ranks("tp", case_.tp, rank_.world.rank()), own))
      loss += terms;
    return loss;
  }

  void backward(int m) {
    machine::Tensor d_out;
    for (auto stage = stages_.rbegin(); stage != stages_.rend(); ++stage) {
      const machine::Tensor d_in = (*stage)->stage().first() ? machine::Tensor() : boundary();
      if (case_.halves_apart) {
        (*stage)->backward_input(m, d_out, d_in);
      } else {
        (*stage)->backward(m, d_out, d_in);
      }
      d_out = d_in;
    }
    if (case_.halves_apart) {
      for (const auto& stage : stages_) stage->backward_weights(m);
    }
  }

  // Returns gradients by name. For a table on two stages, returns the sum of both.
  Observed gradients() {
    Observed all;
    for (const auto& stage : stages_) {
      Observed seen;
      observe_gradients(rank_, stage->parameters(), seen);
      for (auto& [name, values] : seen) {
        for (double& value : values) value /= case_.loss_scale;
        std::vector<double>& sum = all[name];
        if (sum.empty()) {
          sum = std::move(values);
        } else {
          for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
        }
      }
    }
    return all;
  }

  Observed values() {
    Observed all;
    for (const auto& stage : stages_) {
      for (collectives::Parameter* p : stage->parameters())
        all[p->name] = gather(rank_, *p, p->value);
    }
    return all;
  }

 private:
  // Counted in a category that no formula covers, because the caller owns the tensors between
  // stages.
  machine::Tensor boundary() const {
    return rank_.context.tensor(stages_.front()->boundary(case_.sequences),
                                machine::Category::optimizer);
  }

  const Rank& rank_;
  GptCase case_;
  std::unique_ptr<machine::Device> host_ = machine::make_host_device();  // for checkpoints
  std::vector<std::unique_ptr<GptStage>> stages_;
  std::vector<std::vector<std::int32_t>> tokens_, targets_, types_, lengths_, decoder_tokens_;
  std::vector<std::vector<RoutingRecord>> routing_;  // by micro-batch, then by layer
  std::vector<std::int32_t> encoder_buckets_ = case_.buckets(false);
  std::vector<std::int32_t> decoder_buckets_ = case_.buckets(true);
};

struct GptResult {
  double loss = 0;
  Observed gradients, values;
};

inline GptResult train(const GptCase& run) {
  GptResult result;
  on_ranks(run.tp, run.dtype, [&](Rank& rank) {
    GptRanks ranks(rank, run);
    const machine::Ledger& ledger = rank.world.device().ledger();
    const std::size_t held = ledger.current(machine::Category::buffers);
    GptResult seen;
    seen.loss = ranks.step();
    for (int i = 0; i < run.stages; ++i) EXPECT_EQ(ranks.stage(i).in_flight(), 0);
    EXPECT_EQ(ledger.current(machine::Category::activations), 0u);
    EXPECT_EQ(ledger.current(machine::Category::buffers), held);
    seen.gradients = ranks.gradients();
    seen.values = ranks.values();
    if (rank.world.rank() == 0) result = std::move(seen);
  });
  return result;
}

}  // namespace layers::testing

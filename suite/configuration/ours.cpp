#include "suite/configuration/ours.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <stdexcept>

#include "layers/gpt_memory.h"
#include "pipeline/execute.h"
#include "suite/configuration/model_shape.h"
#include "suite/training_step/trainer.h"
#include "zero/cost.h"

namespace suite::configuration {
namespace {

// Knows how many ranks there are, and moves nothing: enough to declare a model.
class NoLink final : public machine::Link {
 public:
  explicit NoLink(int ranks) : Link(machine::first_ranks("tp", ranks, 0)) {}
  machine::Transport transport() const override { return machine::Transport::shared_memory; }

 private:
  [[noreturn]] static void moved() { throw std::logic_error("NoLink: nothing can be moved"); }
  std::uint64_t do_send(int, const void*, std::size_t) override { moved(); }
  void do_wait_sent(int, std::uint64_t) override { moved(); }
  std::uint64_t last_sent(int) const override { moved(); }
  void do_receive(int, void*, std::size_t, machine::Store) override { moved(); }
  const void* do_receive_in_place(int, std::size_t) override { moved(); }
  void do_release(int) override { moved(); }
};

std::string why_not(const Training& training, const Holding& holding) {
  const Model& m = training.model;
  if (holding.optimizer != "none" || holding.parameters != "none")
    return "offload is not implemented";
  if (!has_shape(m)) return "needs a model's shape";
  if (m.swiglu || m.disable_bias_linear || m.untie_embeddings_and_output_weights ||
      m.normalization != "LayerNorm" || m.position_embedding_type != "learned_absolute" ||
      (m.num_query_groups > 0 && m.num_query_groups != m.num_attention_heads) ||
      ffn_width(m) != 4 * m.hidden_size ||
      (m.max_position_embeddings > 0 && m.max_position_embeddings < m.seq_length))
    return "only GPT-2's parts are implemented";
  if (training.degrees.context > 1) return "context parallelism is not implemented";
  if (training.optimizer.type == "SGD") return "SGD is there for tests only";
  if (activation_bytes(training) > 1e16 || parameters_of(m) > 1e16)
    return "more than this program counts to";
  return "";
}

int as_int(std::int64_t value) {
  if (value > std::numeric_limits<int>::max())
    throw std::invalid_argument(fmt::format("{} is more than this program counts to", value));
  return static_cast<int>(value);
}

TrainingConfig config_of(const Training& training, int stage) {
  const Model& m = training.model;
  const Degrees& d = training.degrees;
  TrainingConfig config;
  config.degrees = {.tp = as_int(d.tensor), .dp = as_int(d.data), .pp = as_int(d.pipeline)};
  config.model = {
      .layers = as_int(m.num_layers),
      .hidden = as_int(m.hidden_size),
      .heads = as_int(m.num_attention_heads),
      .vocabulary = suite::padded_vocabulary(as_int(m.vocabulary_size), config.degrees.tp),
      .sequence = as_int(m.seq_length)};
  config.dtype = training.dtype();
  config.zero_stage = stage;
  config.stage3_param_persistence_threshold = training.zero.param_persistence_threshold;
  config.options.stage3_prefetch_bucket_size = training.zero.prefetch_bucket_size;
  config.options.stage3_max_live_parameters = training.zero.max_live_parameters;
  config.micro_batch_size = as_int(training.batch.train_micro_batch_size_per_gpu);
  config.global_batch_size = as_int(training.batch.train_batch_size);
  config.activations = {
      .sequence_parallel = d.sequence_parallel && d.tensor > 1,
      .recompute_granularity =
          layers::recompute_granularity(training.activations.recompute_granularity),
      .recompute_method = layers::recompute_method(training.activations.recompute_method),
      .recompute_num_layers = as_int(training.activations.recompute_num_layers),
      .distribute_saved_activations = training.activations.partition_activations &&
                                      training.activations.recompute_granularity == "full",
      .use_flash_attn = training.activations.use_flash_attn};
  config.validate();
  return config;
}

Held of_config(const TrainingConfig& config) {
  zero::GradientPlan plan;
  ModelParts parts;
  const machine::Grid grid(config.degrees, 0);
  machine::run_ranks(1, [&](machine::World& world) {
    collectives::Communicator tp(world, std::make_unique<NoLink>(config.degrees.tp));
    layers::GptStage model(config.model, world.device(), tp, config.dtype, {0, config.degrees.pp},
                           config.activations);
    plan = zero::gradient_plan(model.parameters(), config.dtype, grid,
                               static_cast<double>(config.tokens()));
    parts = model_parts(model);
  });
  const zero::Layout layout = zero::layout(plan, layout_options(config, parts));
  const zero::ExpectedMemory states =
      zero::expected_memory(config.zero_stage, plan, layout, config.options.rule, config.options,
                            model_usage(config, parts));
  const layers::StageCase part{config.degrees.tp,
                               {0, config.degrees.pp},
                               config.micro_batch_size,
                               config.dtype,
                               config.activations};
  const layers::StageMemory passage = layers::stage_memory(config.model, part);
  const int cut = config.activations.sequence_parallel ? config.degrees.tp : 1;
  const pipeline::Boundary boundary{
      {std::int64_t{config.micro_batch_size} * config.model.sequence / cut, config.model.hidden},
      config.dtype};
  // More micro-batches than that repeat what the middle of 1F1B does.
  const auto schedules =
      pipeline::all_stages(pipeline::find_schedule(config.schedule), config.degrees.pp,
                           std::min(config.micro_batches(), 2 * config.degrees.pp));
  const pipeline::ExpectedMemory passing = pipeline::expected_memory(schedules, 0, boundary);
  const auto in_flight = static_cast<std::size_t>(pipeline::peak_activations(schedules[0]));
  Held held;
  held.gpu.parameters = static_cast<double>(states.parameters);
  held.gpu.gradients = static_cast<double>(states.gradients);
  held.gpu.optimizer = static_cast<double>(states.optimizer);
  held.gpu.activations = static_cast<double>(passing.activations + in_flight * passage.saved);
  held.gpu.buffers = static_cast<double>(
      states.buffers + passing.buffers + Trainer::data_bytes(config, config.degrees.pp == 1) +
      std::max(passage.forward_buffers, passage.backward_buffers));
  held.assumption = "tensor by tensor, as this program holds them; without collectives' staging";
  return held;
}

}  // namespace

Held ours(const Training& training, const Holding& holding) {
  Held none;
  none.not_held = why_not(training, holding);
  if (!none.not_held.empty()) return none;
  try {
    return of_config(config_of(training, holding.stage));
  } catch (const std::invalid_argument& error) {
    none.not_held = error.what();
    return none;
  }
}

}  // namespace suite::configuration

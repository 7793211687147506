#include "suite/trainer/trainer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <stdexcept>

#include "machine/device/random.h"
#include "machine/link/connect.h"
#include "machine/world/step_clock.h"
#include "suite/trainer/gpt2_weights.h"

namespace suite {

using machine::Axis;
using machine::Category;
using machine::Tensor;

namespace {

struct NamedModel {
  std::string name;
  layers::GptConfig config;
};
layers::GptConfig llama(layers::GptConfig shape, int ffn_hidden_size, int num_query_groups) {
  shape.normalization = layers::Normalization::rms_norm;
  shape.swiglu = true;
  shape.ffn_hidden_size = ffn_hidden_size;
  shape.position_embedding_type = layers::PositionEmbedding::rope;
  shape.group_query_attention = true;
  shape.num_query_groups = num_query_groups;
  shape.disable_bias_linear = true;
  shape.untie_embeddings_and_output_weights = true;
  return shape;
}

const std::vector<NamedModel>& models() {
  static const std::vector<NamedModel> table{
      {"tiny",
       {.layers = 2, .hidden = 32, .heads = 4, .vocabulary = Corpus::vocabulary, .sequence = 32}},
      {"small",
       {.layers = 4, .hidden = 64, .heads = 4, .vocabulary = Corpus::vocabulary, .sequence = 64}},
      {"gpt2_124m",
       {.layers = 12, .hidden = 768, .heads = 12, .vocabulary = 50257, .sequence = 1024}},
      {"gpt2_1558m",
       {.layers = 48, .hidden = 1600, .heads = 25, .vocabulary = 50257, .sequence = 1024}},
      {"llama_tiny", llama({.layers = 2,
                            .hidden = 32,
                            .heads = 8,
                            .vocabulary = Corpus::vocabulary,
                            .sequence = 32},
                           96, 4)},
      {"llama2_7b",
       llama({.layers = 32, .hidden = 4096, .heads = 32, .vocabulary = 32000, .sequence = 4096},
             11008, 32)},
  };
  return table;
}

}  // namespace

const std::vector<std::string>& model_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> result;
    for (const NamedModel& model : models()) result.push_back(model.name);
    return result;
  }();
  return names;
}

layers::GptConfig named_model(const std::string& name) {
  for (const NamedModel& model : models())
    if (model.name == name) return model.config;
  throw std::invalid_argument(
      fmt::format("unknown model '{}'; known: {}", name, fmt::join(model_names(), ", ")));
}

int padded_vocabulary(int vocabulary, int tp) {
  constexpr int unit = 128;
  if (vocabulary % unit == 0 && vocabulary % tp == 0) return vocabulary;
  return (vocabulary + unit * tp - 1) / (unit * tp) * unit * tp;
}

void set_model(TrainingConfig& config, const std::string& name,
               const std::string& sequence_length) {
  config.model = named_model(name);
  config.vocabulary = config.model.vocabulary;
  config.model.vocabulary = padded_vocabulary(config.vocabulary, config.degrees.tp);
  if (sequence_length == "model") return;
  const char* const end = sequence_length.data() + sequence_length.size();
  const auto [stop, error] = std::from_chars(sequence_length.data(), end, config.model.sequence);
  if (error != std::errc() || stop != end || config.model.sequence < 1)
    throw std::invalid_argument(
        fmt::format("seq-length '{}' is neither a positive number of tokens nor 'model', which is "
                    "{} for {}",
                    sequence_length, named_model(name).sequence, name));
}

pipeline::Placement TrainingConfig::placement() const {
  return pipeline::find_schedule(schedule).placement(pipeline_size());
}

pipeline::StageSchedules TrainingConfig::schedules() const {
  return pipeline::all_stages(pipeline::find_schedule(schedule), pipeline_size());
}

void TrainingConfig::validate() const {
  model.validate(degrees.tp);
  if (zero_stage < 0 || zero_stage >= zero::num_stages)
    throw std::invalid_argument(fmt::format("zero-stage {}: there are the stages 0 to {}",
                                            zero_stage, zero::num_stages - 1));
  if (zero_stage >= 2 && degrees.pp > 1)
    throw std::invalid_argument(
        fmt::format("zero-stage {} with pipeline-model-parallel-size {}: gradients are reduced in "
                    "every micro-batch, which goes with pipeline-model-parallel-size 1; the "
                    "nearest stage with pipelines is 1",
                    zero_stage, degrees.pp));
  if (micro_batch_size < 1)
    throw std::invalid_argument(
        fmt::format("micro-batch-size {} is not positive", micro_batch_size));
  activations.validate_rows(model, degrees.tp, micro_batch_size);
  if (options.overlap_comm && degrees.dp > 1 && transport != machine::Transport::shared_memory)
    throw std::invalid_argument(
        fmt::format("overlap_comm with transport {}: one thread alone may use it; the transport "
                    "that more may use is shared_memory",
                    machine::name(transport)));
  const int unit = degrees.dp * micro_batch_size;
  if (global_batch_size < 1 || global_batch_size % unit != 0)
    throw std::invalid_argument(
        fmt::format("global-batch-size {} is not divisible by data-parallel-size {} x "
                    "micro-batch-size {}; the next that is: {}",
                    global_batch_size, degrees.dp, micro_batch_size,
                    (std::max(global_batch_size, 1) + unit - 1) / unit * unit));
  check(options.offload_param, zero_stage, options.offload_optimizer);
  validate_pipeline();
}

void TrainingConfig::validate_pipeline() const {
  const pipeline::Schedule& actions = pipeline::find_schedule(schedule);
  if (const std::string why = actions.why_not(pipeline_size()); !why.empty())
    throw std::invalid_argument(why);
  if (actions.any_chunks && virtual_stages == 1)
    throw std::invalid_argument(fmt::format(
        "num-virtual-stages-per-pipeline-rank 1 with schedule {} is 1f1b; the nearest that "
        "interleaves is {}",
        schedule, actions.chunks));
  activations.validate(model, degrees.tp, std::ranges::min(layers_of_parts(*this)));
  if (zero_stage < 2) return;
  if (!actions.whole())
    throw std::invalid_argument(
        fmt::format("zero-stage {} with schedule {}: the model is used as one part with one "
                    "backward, as in 1f1b; the nearest stage with this schedule is 1",
                    zero_stage, schedule));
  const int in_flight = actions.peak(0, pipeline_size());
  if (in_flight > 1)
    throw std::invalid_argument(
        fmt::format("zero-stage {} with schedule {}: {} micro-batches are in flight, but each has "
                    "to be backward before the next is forward, as in 1f1b",
                    zero_stage, schedule, in_flight));
}

std::vector<machine::Link*> Trainer::Group::links() const {
  std::vector<machine::Link*> all;
  if (communicator) all.push_back(&communicator->link());
  if (gradients) all.push_back(gradients.get());
  return all;
}

collectives::Communicator* Trainer::communicator(std::string_view name) const {
  for (const Group& group : groups_)
    if (group.name == name) return group.communicator.get();
  return nullptr;
}

Trainer::Trainer(machine::World& world, const machine::Group& group, machine::Device& device,
                 TrainingConfig config, const Corpus& corpus)
    : world_(world),
      group_(group),
      device_(device),
      config_(std::move(config)),
      corpus_(corpus),
      grid_(config_.degrees, group.index),
      scale_(config_.loss_scale) {
  config_.validate();
  if (config_.partition_method == "profile" && config_.placement().parts() > 1 &&
      config_.layer_costs.empty())
    throw std::logic_error("partition-method profile, and no layer was measured");
  config_.options.offload_optimizer.nvme.swap.io.rank = group.index;
  config_.options.offload_param.swap.io.rank = group.index;
  schedules_ = config_.schedules();
  connect_groups();
  if (config_.activations.cpu_checkpointing) checkpoint_host_ = machine::make_host_device();
  chunks_ = std::make_unique<ModelChunks>(config_, schedules_.placement, grid_.coordinate(Axis::pp),
                                          device, *communicator("tp"), checkpoint_host_.get());
  parameters_ = chunks_->parameters();
  parts_ = model_parts(*chunks_);
  plan_ =
      zero::gradient_plan(parameters_, config_.dtype, grid_, static_cast<double>(config_.tokens()));
  states_ = std::make_unique<zero::FlatStates>(device, plan_, parameters_,
                                               layout_options(config_, parts_));
  chunks_->initialize(layers::Initializer::conformance(config_.seed, config_.model.layers));
  vocabulary_ = config_.vocabulary > 0 ? config_.vocabulary : config_.model.vocabulary;
  if (!config_.weights.empty())
    vocabulary_ = load_gpt2(config_.weights, config_.model, parameters_, config_.degrees.tp,
                            grid_.coordinate(Axis::tp));
  chunks_->set_vocabulary(vocabulary_);
  step_ = zero::make_step(
      config_.zero_stage, *states_, plan_,
      {communicator("tp"), communicator("pp"), communicator("dp"), communicator("embedding")},
      config_.options);
  connect_step();
  scale_loss();
  const auto all_tokens = static_cast<std::size_t>(config_.tokens() / config_.degrees.dp);
  drawn_.resize(2 * all_tokens);
  tokens_ = device.allocate(drawn_.size() * sizeof(std::int32_t), Category::buffers);
  if (chunks_->has_loss()) {
    losses_ = Tensor(device, machine::Dtype::float64, {config_.micro_batches()}, Category::buffers);
    device.stream().kernels().fill(losses_, 0);  // another copy of the model's may end elsewhere
  }
  if (config_.uneven_tokens)
    counted_ = Tensor(device, machine::Dtype::float64, {1}, Category::buffers);
  connect_executor();
}

void Trainer::connect_groups() {
  for (const Axis axis : {Axis::tp, Axis::pp, Axis::dp})
    groups_.push_back(
        {std::string(name(axis)),
         std::make_unique<collectives::Communicator>(world_, grid_.group(axis), config_.transport),
         nullptr});
  if (pipeline::needs_two_links(schedules_))
    groups_[1].gradients = machine::connect(world_, grid_.group(Axis::pp), config_.transport);
  const machine::Group ends =
      schedules_.placement.copies() > 1 ? grid_.opposite_group() : grid_.embedding_group();
  groups_.push_back(
      {"embedding",
       ends.index >= 0 && ends.size() > 1
           ? std::make_unique<collectives::Communicator>(world_, ends, config_.transport)
           : nullptr,
       nullptr});
}

void Trainer::connect_executor() {
  machine::Link& activations = communicator("pp")->link();
  const auto& gradients = groups_[1].gradients;
  executor_ = std::make_unique<pipeline::Executor>(
      schedules_, config_.micro_batches(),
      pipeline::Boundary{(*chunks_)[0].boundary(config_.micro_batch_size), config_.dtype},
      gradients ? pipeline::Links(activations, *gradients) : pipeline::Links(activations), device_,
      world_.host_device());
  const auto batch = [this](int micro_batch) {
    const std::int64_t tokens = std::int64_t{config_.micro_batch_size} * config_.model.sequence;
    const std::int64_t first = micro_batch * tokens;
    const auto* drawn = static_cast<const std::int32_t*>(tokens_.data()) + first;
    return layers::TokenBatch{drawn,
                              drawn + drawn_.size() / 2,
                              config_.micro_batch_size,
                              {config_.seed, first_sequence() * config_.model.sequence + first}};
  };
  // The pass of a large model's micro-batch may take long: a sign of life after each.
  const auto works = [this] { world_.board().mine().progress.fetch_add(1); };
  const auto ended = [this, works] {
    if (tells_of_gradients()) step_->end_micro_batch();
    works();
  };
  work_.forward = [this, batch, works](const pipeline::Action& action, const Tensor& in,
                                       const Tensor& out) {
    if (config_.zero_stage >= 2)
      step_->begin_micro_batch(action.micro_batch + 1 == config_.micro_batches());
    layers::GptStage& part = (*chunks_)[action.chunk];
    part.forward(action.micro_batch, batch(action.micro_batch), in,
                 part.stage().last() ? losses_.slice(action.micro_batch, {1}) : out);
    works();
  };
  work_.backward = [this, ended](const pipeline::Action& action, const Tensor&, const Tensor& d_out,
                                 const Tensor& d_in) {
    begin_gradients();
    (*chunks_)[action.chunk].backward(action.micro_batch, d_out, d_in);
    ended();
  };
  work_.backward_input = [this, works](const pipeline::Action& action, const Tensor&,
                                       const Tensor& d_out, const Tensor& d_in) {
    (*chunks_)[action.chunk].backward_input(action.micro_batch, d_out, d_in);
    works();
  };
  work_.backward_weights = [this, ended](const pipeline::Action& action, const Tensor&,
                                         const Tensor&) {
    begin_gradients();
    (*chunks_)[action.chunk].backward_weights(action.micro_batch);
    ended();
  };
  works();
}

// Stages 2 and 3 have values and gradients only where the model needs them; with overlap_comm
// values of stage 1 may be on their way still, and the gradients of stages 0 and 1 go when they are
// ready.
void Trainer::connect_step() {
  using layers::Parameters;
  layers::StageObserver observer;
  observer.before_use = [this](const Parameters& part) { step_->before_use(part); };
  observer.after_use = [this](const Parameters& part) { step_->after_use(part); };
  if (tells_of_gradients()) {
    observer.before_gradients = [this](const Parameters& part) { step_->before_gradients(part); };
    observer.gradients_ready = [this](const Parameters& part) { step_->gradients_ready(part); };
  }
  chunks_->observe(observer);
}

bool Trainer::tells_of_gradients() const {
  return config_.zero_stage >= 2 || config_.options.overlap_comm;
}

// To stages 0 and 1 a micro-batch is what adds its gradients, to one chunk: several may be in
// flight, but these are added one after the other.
void Trainer::begin_gradients() {
  if (config_.zero_stage >= 2 || !tells_of_gradients()) return;
  const auto& plan = executor_->plan();
  const auto all = std::ranges::count_if(plan, [](const pipeline::Action& action) {
    return action.kind == pipeline::Kind::backward ||
           action.kind == pipeline::Kind::backward_weights;
  });
  with_gradients_ = with_gradients_ % all + 1;
  step_->begin_micro_batch(with_gradients_ == all);
}

std::size_t Trainer::data_bytes(const TrainingConfig& config, bool has_loss) {
  const auto tokens = static_cast<std::size_t>(config.tokens() / config.degrees.dp);
  return 2 * tokens * sizeof(std::int32_t) + (config.uneven_tokens ? sizeof(double) : 0) +
         (has_loss ? static_cast<std::size_t>(config.micro_batches()) * sizeof(double) : 0);
}

// Sequences are numbered over all steps, within one first by dp rank, then by micro-batch.
std::int64_t Trainer::first_sequence() const {
  const int of_a_rank = config_.global_batch_size / config_.degrees.dp;
  return steps_ * config_.global_batch_size + std::int64_t{grid_.coordinate(Axis::dp)} * of_a_rank;
}

int counted_tokens(std::uint64_t seed, std::int64_t step, int index, int sequences, int tokens) {
  if (step % 4 == 0 && index >= (sequences + 1) / 2) return 0;
  const double part =
      machine::uniform(seed ^ 0x636f756e74u, static_cast<std::uint64_t>(step * sequences + index));
  return std::max(index == 0 ? 1 : 0, static_cast<int>(part * (tokens + 1)));
}

void Trainer::draw_data() {
  const machine::During data(machine::Part::data);
  const int sequence = config_.model.sequence;
  const std::size_t sequences = drawn_.size() / 2 / static_cast<std::size_t>(sequence);
  const auto first = static_cast<std::uint64_t>(first_sequence());
  for (std::size_t i = 0; i < sequences; ++i)
    corpus_.draw(config_.seed, first + i, sequence,
                 drawn_.data() + i * static_cast<std::size_t>(sequence),
                 drawn_.data() + drawn_.size() / 2 + i * static_cast<std::size_t>(sequence));
  if (config_.uneven_tokens) count_tokens();
  device_.stream().copy(tokens_.data(), drawn_.data(), tokens_.bytes());
}

// Ranks of other dp coordinates have other sequences: how many tokens count is known only together
// (as with Megatron-LM's --calculate-per-token-loss).
void Trainer::count_tokens() {
  const int sequence = config_.model.sequence;
  const std::size_t sequences = drawn_.size() / 2 / static_cast<std::size_t>(sequence);
  const auto first = static_cast<int>(first_sequence() - steps_ * config_.global_batch_size);
  double mine = 0;
  for (std::size_t i = 0; i < sequences; ++i) {
    const int counted = counted_tokens(config_.seed, steps_, first + static_cast<int>(i),
                                       config_.global_batch_size, sequence);
    mine += counted;
    std::int32_t* const targets =
        drawn_.data() + drawn_.size() / 2 + i * static_cast<std::size_t>(sequence);
    std::fill(targets + counted, targets + sequence, -1);
  }
  from_doubles(counted_, {mine});
  step_->wait_for_values();  // the group is theirs
  if (config_.degrees.dp > 1) communicator("dp")->all_reduce(counted_, counted_);
  step_->set_divisor(to_doubles(counted_).front());
}

void Trainer::forward_backward() {
  draw_data();
  timeline_ = executor_->run(work_);
}

zero::StepResult Trainer::update() {
  ++steps_;
  if (config_.learning_rate)
    std::visit([&](auto& rule) { rule.learning_rate = config_.learning_rate->after(updates_); },
               step_->optimizer().rule());
  const zero::StepResult result = step_->update();
  updates_ += result.updated;
  scale_.update(!result.updated);
  scale_loss();
  return result;
}

void Trainer::scale_loss() {
  chunks_->set_loss_scale(scale_.scale());
  step_->set_loss_scale(scale_.scale());
}

std::uint64_t Trainer::hash_of_values() {
  std::uint64_t all = 0;
  with_values([&] {
    for (const collectives::Parameter* parameter : parameters_)
      all = all * 0x100000001b3u + hash(parameter->value);
  });
  return all;
}

void Trainer::save(const std::string& path) {
  with_values([&] {
    save_gpt2(path, config_.model, vocabulary_, parameters_, world_, group_, grid_,
              stages_of_layers(config_, schedules_.placement));
  });
}

double Trainer::mean_loss() {
  double sum = 0;
  if (losses_ && grid_.coordinate(Axis::tp) == 0)
    for (const double loss : to_doubles(losses_)) sum += loss;
  double total = 0;
  for (const double theirs : world_.all_gather(group_, sum)) total += theirs;
  return total / step_->divisor();
}

}  // namespace suite

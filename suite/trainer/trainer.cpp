#include "suite/trainer/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "layers/models/grids/grid_output_head.h"
#include "machine/base/error.h"
#include "machine/base/names.h"
#include "machine/world/step_clock.h"
#include "suite/trainer/gpt2_weights.h"
#include "suite/trainer/validation.h"

namespace suite {

using machine::Axis;
using machine::Category;
using machine::Tensor;

namespace {

bool adds_gradients(const pipeline::Action& action) {
  return action.kind == pipeline::Kind::backward || action.kind == pipeline::Kind::backward_weights;
}

// Returns this rank's terms of the auxiliary losses times the tokens of their micro-batches.
double sum_of_losses(const StepRouting& routing, const TrainingConfig& config) {
  double sum = 0;
  for (const std::vector<layers::RoutingRecord>& micro_batch : routing)
    for (const layers::RoutingRecord& record : micro_batch)
      sum += static_cast<double>(record.chosen.size()) / config.model.moe.topk * record.losses;
  return sum * config.degrees.tp * config.degrees.cp;
}

}  // namespace

Trainer::Trainer(machine::World& world, const machine::Group& group, machine::Device& device,
                 TrainingConfig config, const Corpus& corpus)
    : world_(world),
      group_(group),
      device_(device),
      config_(std::move(config)),
      grid_(config_.degrees, group),
      scale_(config_.precision.loss_scale),
      tokens_(config_, corpus, grid_.coordinate(Axis::dp), grid_.coordinate(Axis::cp)) {
  validate(config_);
  if (config_.pipeline.partition_method == "profile" && placement(config_).parts() > 1 &&
      config_.pipeline.layer_costs.empty())
    throw std::logic_error(
        "partition-method profile requires measured layers (got no measurement)");
  config_.zero.aio.rank = group.index;
  schedules_ = suite::schedules(config_);
  connect_groups();
  const bool chunked = config_.degrees.cp > 1 && config_.context.fpdt;
  if (config_.activations.cpu_checkpointing || (chunked && config_.context.fpdt_offloading))
    activations_host_ = machine::make_host_device_beside(device);
  layers::ContextParallel context{
      communicator("cp"), config_.context.placement(config_.model.sequence, config_.degrees.cp),
      config_.context.comm_type, communicator("cp_a2a"), communicator("cp_p2p")};
  if (chunked) {
    attention_chunks_ = std::make_unique<layers::ChunkOffload>(
        device, config_.context.fpdt_offloading ? activations_host_.get() : nullptr);
    context.fpdt_chunk_size = config_.context.fpdt_chunk_size;
    context.chunks = attention_chunks_.get();
  }
  std::optional<layers::MoeCommunicators> experts;
  if (config_.model.has_experts())
    experts.emplace(*communicator("ep"), expert_degrees(config_).etp, communicator("tp_cp"));
  chunks_ = std::make_unique<ModelChunks>(config_, schedules_.placement, grid_.coordinate(Axis::pp),
                                          device, *communicator("tp"), activations_host_.get(),
                                          context, experts, communicator("fp8"),
                                          grid_context_ ? &*grid_context_ : nullptr);
  parameters_ = chunks_->parameters();
  parts_ = model_parts(*chunks_);
  micro_batch_is_pass_ = micro_batch_is_pass(config_);
  for (int chunk = 0; chunk < chunks_->size(); ++chunk) {
    layers::Parameters& all = parameters_of_chunks_.emplace_back();
    for (const layers::Parameters& part : (*chunks_)[chunk].parts())
      all.insert(all.end(), part.begin(), part.end());
  }
  plan_ = zero::gradient_plan(
      parameters_, config_.precision.dtype, grid_, static_cast<double>(config_.tokens()),
      frozen_parameters(config_, parameters_), config_.gradient_dtype(), zero_experts(config_));
  name_matrices(plan_, parameters_, config_);
  check_frozen();
  states_ = std::make_unique<zero::FlatStates>(device, plan_, parameters_,
                                               layout_options(config_, parts_));
  chunks_->initialize(layers::Initializer::conformance(config_.seed, config_.model.layers));
  vocabulary_ = config_.model.tokens > 0 ? config_.model.tokens : config_.model.vocabulary;
  if (!config_.weights.empty())
    vocabulary_ = load_gpt2(config_.weights, config_.model, parameters_, config_.degrees.tp,
                            grid_.coordinate(Axis::tp));
  chunks_->set_vocabulary(vocabulary_);
  step_ = zero::make_step(
      config_.zero.stage, *states_, plan_,
      {communicator("tp"), communicator("pp"), communicator("dp"), communicator("embedding"),
       communicator("edp"), communicator("hpz"), communicator("qgz_near"), communicator("qgz_far")},
      config_.step_options());
  connect_step();
  scale_loss();
  tokens_.allocate(device);
  if (config_.model.has_experts())
    routing_.resize(
        static_cast<std::size_t>(config_.micro_batches()),
        std::vector<layers::RoutingRecord>(static_cast<std::size_t>(config_.model.layers)));
  if (chunks_->has_loss()) {
    losses_ = Tensor(device, machine::Dtype::float64, {config_.micro_batches()}, Category::buffers);
    device.stream().kernels().fill(losses_,
                                   0);  // the other copy of the model may end on another stage
  }
  connect_executor();
}

// A pattern must select a parameter of some rank, and some parameter must be trained.
void Trainer::check_frozen() const {
  if (config_.frozen.empty()) return;
  std::vector<std::string> names;
  bool trains = false;
  for (const zero::GradientRow& row : plan_.rows) {
    names.push_back(row.parameter);
    trains = trains || !row.frozen;
  }
  std::vector<std::string> all;
  for (const std::vector<std::string>& theirs : world_.all_gather(group_, names))
    all.insert(all.end(), theirs.begin(), theirs.end());
  for (const std::string& pattern : config_.frozen_patterns()) {
    TrainingConfig one;
    one.frozen = pattern;
    if (one.frozen_names(all).empty())
      throw std::invalid_argument("freeze: " + machine::unknown("parameter", pattern, all));
  }
  const std::vector<int> trained = world_.all_gather(group_, trains ? 1 : 0);
  if (std::ranges::count(trained, 1) == 0)
    throw std::invalid_argument(fmt::format(
        "freeze is {}; expected patterns that leave a parameter to train", config_.frozen));
}

void Trainer::connect_executor() {
  machine::Link& activations = communicator("pp")->link();
  const auto& gradients = groups_[1].gradients;
  executor_ = std::make_unique<pipeline::Executor>(
      schedules_, config_.micro_batches(),
      pipeline::Boundary{(*chunks_)[0].boundary(config_.batch.micro_batch_size),
                         config_.precision.dtype},
      gradients ? pipeline::Links(activations, *gradients) : pipeline::Links(activations), device_,
      world_.host_device(), receives_of(config_));
  // A micro-batch of a large model may take long, so each pass reports progress to the watchdog.
  const auto ended = [this](const pipeline::Action& action) {
    end_pass(action);
    world_.board().mine().progress.fetch_add(1);
  };
  work_.forward = [this, ended](const pipeline::Action& action, const Tensor& in,
                                const Tensor& out) {
    begin_pass(action);
    layers::ModelStage& part = (*chunks_)[action.chunk];
    layers::TokenBatch batch = tokens_.batch(action.micro_batch);
    if (!routing_.empty()) batch.routing = &routing_[static_cast<std::size_t>(action.micro_batch)];
    part.forward(action.micro_batch, batch, in,
                 part.stage().last() ? losses_.slice(action.micro_batch, {1}) : out);
    ended(action);
  };
  work_.backward = [this, ended](const pipeline::Action& action, const Tensor&, const Tensor& d_out,
                                 const Tensor& d_in) {
    begin_pass(action);
    (*chunks_)[action.chunk].backward(action.micro_batch, d_out, d_in);
    ended(action);
  };
  work_.backward_input = [this, ended](const pipeline::Action& action, const Tensor&,
                                       const Tensor& d_out, const Tensor& d_in) {
    begin_pass(action);
    (*chunks_)[action.chunk].backward_input(action.micro_batch, d_out, d_in);
    ended(action);
  };
  work_.backward_weights = [this, ended](const pipeline::Action& action, const Tensor&,
                                         const Tensor&) {
    begin_pass(action);
    (*chunks_)[action.chunk].backward_weights(action.micro_batch);
    ended(action);
  };
  gradient_passes_ = std::ranges::count_if(
      executor_->plan(), [](const pipeline::Action& action) { return adds_gradients(action); });
}

// ZeRO stages 2 and 3 hold values and gradients only while the model needs them. With overlap_comm
// ZeRO stage 1 may still wait for values, and ZeRO stages 0 and 1 reduce gradients as soon as they
// are ready.
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
  return config_.zero.stage >= 2 || config_.zero.overlaps();
}

// Several micro-batches may be in flight, but passes run one after another. ZeRO stages 0 and 1 are
// told only of those that add gradients.
void Trainer::begin_pass(const pipeline::Action& action) {
  if (config_.zero.stage < 2) {
    if (!tells_of_gradients() || !adds_gradients(action)) return;
    passes_begun_ = passes_begun_ % gradient_passes_ + 1;
    step_->begin_pass({.last = passes_begun_ == gradient_passes_});
  } else if (!micro_batch_is_pass_) {
    static const layers::Parameters none;
    const auto chunk = static_cast<std::size_t>(action.chunk);
    step_->begin_pass({.which = pass_number(action),
                       .gradients = adds_gradients(action) ? &parameters_of_chunks_[chunk] : &none,
                       .backward = action.kind != pipeline::Kind::forward});
  } else if (action.kind == pipeline::Kind::forward) {
    step_->begin_micro_batch(action.micro_batch + 1 == config_.micro_batches());
  }
}

void Trainer::end_pass(const pipeline::Action& action) {
  const bool told = config_.zero.stage >= 2 ? !micro_batch_is_pass_ || adds_gradients(action)
                                            : tells_of_gradients() && adds_gradients(action);
  if (told) step_->end_pass();
}

std::size_t Trainer::data_bytes(const TrainingConfig& config, bool has_loss) {
  return StepTokens::bytes(config) +
         (has_loss ? static_cast<std::size_t>(config.micro_batches()) * sizeof(double) : 0);
}

// The number of tokens that count is summed over dp, because its ranks have different tokens (as
// with Megatron-LM's --calculate-per-token-loss).
void Trainer::draw_data(std::int64_t step) {
  const machine::During data(machine::Part::data);
  tokens_.draw(step);
  if (const Tensor& counted = tokens_.counted()) {
    step_->wait_for_values();  // gathering values uses the same group
    if (config_.shards() > 1) communicator("dp")->all_reduce(counted, counted);
    step_->set_divisor(to_doubles(counted).front());
  }
}

void Trainer::forward_backward(std::int64_t data_of_step) {
  draw_data(data_of_step);
  if (graph_) return launch();
  executor_->run(work_);
  for (std::vector<layers::RoutingRecord>& micro_batch : routing_)
    for (layers::RoutingRecord& record : micro_batch) record.given = false;
  if (!config_.graph) return;
  std::vector<machine::Link*> links;
  for (const Group& group : groups_)
    for (machine::Link* link : group.links()) links.push_back(link);
  graph_.emplace(device_, std::move(links));
}

void Trainer::launch() {
  SHARDMARK_CHECK(was_launched_, ==, false);  // the graph would sum every gradient twice
  step_->wait_for_values();
  graph_->launch(scale_.scale(), [this] {
    executor_->run(work_, pipeline::Executor::Times::none);
    step_->reduce();
  });
  was_launched_ = true;
  world_.board().mine().progress.fetch_add(1);
}

void Trainer::reduce() {
  if (std::exchange(was_launched_, false))
    step_->set_reduced();
  else
    step_->reduce();
}

void Trainer::give_routing(const StepRouting& decisions) {
  routing_ = decisions;
  for (std::vector<layers::RoutingRecord>& micro_batch : routing_)
    for (layers::RoutingRecord& record : micro_batch) record.given = true;
}

StepRouting Trainer::gathered_routing() const {
  if (routing_.empty()) return {};
  return joined_routing(config_, world_.all_gather(group_, routing_));
}

RoutedRows Trainer::routed_rows() const {
  RoutedRows rows;
  if (!config_.model.has_experts()) return rows;
  const machine::Group group = expert_groups().experts;
  const layers::MoeConfig mixture = config_.model.mixture();
  for (const std::vector<layers::RoutingRecord>& micro_batch : routing_) {
    auto& of_layers = rows.emplace_back();
    for (const layers::RoutingRecord& record : micro_batch) {
      auto& counts = of_layers.emplace_back(static_cast<std::size_t>(mixture.num_experts));
      for (const std::int32_t expert : record.choices)
        if (expert >= 0) ++counts[static_cast<std::size_t>(expert)];
      const auto tokens = std::ssize(record.chosen) / mixture.topk;
      if (mixture.pads()) std::ranges::fill(counts, mixture.capacity(tokens));
    }
  }
  // [ranks, num_experts]
  RoutedRows all = rows;
  for (auto& micro_batch : all)
    for (auto& layer : micro_batch) layer.clear();
  for (const RoutedRows& theirs : world_.all_gather(group, rows))
    for (std::size_t i = 0; i < all.size(); ++i)
      for (std::size_t layer = 0; layer < all[i].size(); ++layer)
        all[i][layer].insert(all[i][layer].end(), theirs[i][layer].begin(), theirs[i][layer].end());
  return all;
}

zero::StepResult Trainer::update() {
  ++steps_;
  const double rate = config_.learning_rate().after(updates_);
  std::visit([&](auto& rule) { rule.learning_rate = rate; }, step_->optimizer().rule());
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

Trainer::Counters Trainer::counters() const {
  return {steps_, updates_, step_->optimizer().steps(), scale_.state(), vocabulary_};
}

void Trainer::set_counters(const Counters& counters) {
  scale_.restore(counters.scale);
  steps_ = counters.steps;
  updates_ = counters.updates;
  step_->optimizer().set_steps(counters.optimizer_steps);
  vocabulary_ = counters.vocabulary;
  chunks_->set_vocabulary(vocabulary_);
  scale_loss();
}

bool Trainer::is_first_holder(const collectives::Parameter& parameter) const {
  const bool first_of_tp = parameter.placement.tp == collectives::Spread::sharded ||
                           parameter.placement.part(grid_.coordinate(Axis::tp)) == 0;
  return first_of_tp && (!parameter.placement.tied_over_pp || tied_group().index <= 0);
}

std::uint64_t Trainer::hash_of_values() {
  std::uint64_t all = 0;
  with_each_part([&](const layers::Parameters& part) {
    for (const collectives::Parameter* parameter : part)
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
  // Over a grid, ranks of other rows have other tokens.
  const int place = grid_groups_
                        ? grid_groups_->place().along(layers::vocabulary_axis(grid_groups_->grid()))
                        : grid_.coordinate(Axis::tp);
  if (losses_ && place == 0)
    for (const double loss : to_doubles(losses_)) sum += loss;
  sum += sum_of_losses(routing_, config_);
  double total = 0;
  for (const double theirs : world_.all_gather(group_, sum)) total += theirs;
  return total / step_->divisor();
}

}  // namespace suite

#include "suite/trainer/layer_costs.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>

#include "layers/models/gpt.h"
#include "machine/base/clock.h"
#include "machine/device/kernels.h"
#include "machine/world/grid.h"
#include "suite/configuration/group_algorithms.h"
#include "suite/trainer/model_chunks.h"

namespace suite {

using machine::Category;
using machine::Dtype;
using machine::Tensor;

namespace {

constexpr std::size_t passes = 5;  // after a warm-up pass; their median is used

double seconds_of_layer(machine::World& world, machine::Device& device,
                        collectives::Communicator& tp, const TrainingConfig& config, int layer) {
  layers::ActivationOptions options = config.activations;
  options.recompute_num_layers = 1;
  const auto host = options.cpu_checkpointing ? machine::make_host_device_beside(device) : nullptr;
  layers::GptStage stage(config.model, device, tp, config.precision.dtype,
                         {layer, config.model.layers}, options, host.get(), nullptr, {}, {},
                         {.options = config.fp8});
  stage.initialize(layers::Initializer::conformance(config.seed, config.model.layers));
  stage.zero_gradients();
  if (config.model.tokens > 0) stage.set_vocabulary(config.model.tokens);

  machine::Stream& stream = device.stream();
  const machine::Shape boundary = stage.boundary(config.batch.micro_batch_size);
  const auto between = [&](bool there, Dtype dtype, const machine::Shape& shape) {
    if (!there) return Tensor();
    Tensor tensor(device, dtype, shape, Category::buffers);
    stream.kernels().fill_uniform(tensor, 1, {}, -1, 1);
    return tensor;
  };
  const bool first = stage.stage().first(), last = stage.stage().last();
  const Tensor in = between(!first, config.precision.dtype, boundary),
               d_in = between(!first, config.precision.dtype, boundary),
               d_out = between(!last, config.precision.dtype, boundary),
               out = last ? between(true, Dtype::float64, {1})
                          : between(true, config.precision.dtype, boundary);
  const auto sequence = static_cast<std::size_t>(config.model.sequence);
  // As many zeros as tokens, or as pairs of relative positions.
  const std::size_t tokens =
      std::max(static_cast<std::size_t>(config.batch.micro_batch_size), sequence) * sequence;
  const machine::Memory words = device.allocate(tokens * sizeof(std::int32_t), Category::buffers);
  const std::vector<std::int32_t> zeros(tokens);
  stream.copy(words.data(), zeros.data(), words.bytes());
  const auto* word = static_cast<const std::int32_t*>(words.data());
  const layers::TokenBatch batch{
      word, word, config.batch.micro_batch_size, {config.seed, 0}, word, nullptr, word, word, word};

  std::array<double, passes + 1> seconds{};
  for (double& pass : seconds) {
    stream.synchronize();
    const double begin = machine::steady_s();
    stage.forward(0, batch, in, out);
    stage.backward(0, d_out, d_in);
    stream.synchronize();
    pass = machine::steady_s() - begin;
    world.board().mine().progress.fetch_add(1);  // shows that the rank works and does not hang
  }
  const auto median = seconds.begin() + 1 + passes / 2;
  std::nth_element(seconds.begin() + 1, median, seconds.end());
  return *median;
}

}  // namespace

void measure_layers(TrainingConfig& config, machine::World& world, const machine::Group& group,
                    machine::Device& device) {
  if (config.pipeline.partition_method != "profile" || placement(config).parts() == 1) return;
  const machine::Grid grid(config.degrees, group);
  collectives::Communicator tp(world, grid.group(machine::Axis::tp), config.transport);
  tp.set_algorithms(group_algorithms(config, "tp"));
  const int layers = config.model.layers;
  std::array<std::int64_t, 3> mine{}, slowest{};  // first layer, middle layer, last layer
  const std::array measured{0, layers / 2, layers - 1};
  for (std::size_t i = 0; i < measured.size(); ++i)
    mine[i] =
        static_cast<std::int64_t>(1e9 * seconds_of_layer(world, device, tp, config, measured[i]));
  for (const auto& theirs : world.all_gather(group, mine))
    for (std::size_t i = 0; i < slowest.size(); ++i) slowest[i] = std::max(slowest[i], theirs[i]);
  config.pipeline.layer_costs.assign(static_cast<std::size_t>(layers), slowest[1]);
  config.pipeline.layer_costs.front() = slowest[0];
  config.pipeline.layer_costs.back() = slowest[2];
}

}  // namespace suite

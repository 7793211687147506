#include "suite/trainer/step_tokens.h"

#include <algorithm>

#include "machine/device/random.h"

namespace suite {
namespace {

std::size_t tokens_of_rank(const TrainingConfig& config) {
  return static_cast<std::size_t>(config.tokens() / config.degrees.dp);
}

}  // namespace

int counted_tokens(std::uint64_t seed, std::int64_t step, int index, int sequences, int tokens) {
  if (step % 4 == 0 && index >= (sequences + 1) / 2) return 0;
  const double part =
      machine::uniform(seed ^ 0x636f756e74u, static_cast<std::uint64_t>(step * sequences + index));
  return std::max(index == 0 ? 1 : 0, static_cast<int>(part * (tokens + 1)));
}

void StepTokens::allocate(machine::Device& device) {
  device_ = &device;
  const std::size_t count = 2 * tokens_of_rank(config_), bytes = count * sizeof(std::int32_t);
  host_ = machine::make_host_device_beside(device);
  drawn_memory_ = host_->allocate(bytes, machine::Category::buffers);
  drawn_ = {static_cast<std::int32_t*>(drawn_memory_.data()), count};
  tokens_ = device.allocate(bytes, machine::Category::buffers);
  if (config_.uneven_tokens)
    counted_ = machine::Tensor(device, machine::Dtype::float64, {1}, machine::Category::buffers);
}

std::size_t StepTokens::bytes(const TrainingConfig& config) {
  return 2 * tokens_of_rank(config) * sizeof(std::int32_t) +
         (config.uneven_tokens ? sizeof(double) : 0);
}

void StepTokens::draw(std::int64_t step) {
  if (copied_) copied_->synchronize();
  const int sequence = config_.model.sequence;
  const auto length = static_cast<std::size_t>(sequence);
  const int of_a_rank = config_.batch.global_batch_size / config_.degrees.dp;
  first_ = static_cast<std::uint64_t>(step * config_.batch.global_batch_size +
                                      std::int64_t{dp_rank_} * of_a_rank);
  const std::size_t half = drawn_.size() / 2;
  for (std::size_t i = 0; i < half / length; ++i)
    corpus_.draw(config_.seed, first_ + i, sequence, drawn_.data() + i * length,
                 drawn_.data() + half + i * length);
  if (config_.uneven_tokens) count(step);
  device_->stream().copy(tokens_.data(), drawn_.data(), tokens_.bytes());
  copied_ = device_->stream().record();
}

void StepTokens::count(std::int64_t step) {
  const int sequence = config_.model.sequence, sequences = config_.batch.global_batch_size;
  const auto length = static_cast<std::size_t>(sequence);
  const std::size_t half = drawn_.size() / 2;
  const auto first = static_cast<int>(static_cast<std::int64_t>(first_) - step * sequences);
  double mine = 0;
  for (std::size_t i = 0; i < half / length; ++i) {
    const int counted =
        counted_tokens(config_.seed, step, first + static_cast<int>(i), sequences, sequence);
    mine += counted;
    std::int32_t* const targets = drawn_.data() + half + i * length;
    std::fill(targets + counted, targets + sequence, -1);
  }
  from_doubles(counted_, {mine});
}

layers::TokenBatch StepTokens::batch(int micro_batch) const {
  const int rows = config_.batch.micro_batch_size;
  const std::int64_t first = micro_batch * std::int64_t{rows} * config_.model.sequence;
  const auto* drawn = static_cast<const std::int32_t*>(tokens_.data()) + first;
  return {drawn,
          drawn + drawn_.size() / 2,
          rows,
          {config_.seed, static_cast<std::int64_t>(first_) * config_.model.sequence + first}};
}

}  // namespace suite

#include "suite/trainer/tokens/step_tokens.h"

#include <algorithm>

#include "layers/attention/relative_bias.h"
#include "machine/device/random.h"
#include "suite/trainer/tokens/encoder_examples.h"

namespace suite {
namespace {

std::size_t tokens_of_rank(const TrainingConfig& config) {
  return static_cast<std::size_t>(config.tokens() / config.shards());
}

std::size_t pairs_of_positions(const TrainingConfig& config) {
  return static_cast<std::size_t>(config.model.sequence) *
         static_cast<std::size_t>(config.model.sequence);
}

// Numbers of a rank in a step: tokens and targets; of an encoder types and lengths; of an
// encoder-decoder the decoder's tokens, lengths and the buckets of both stacks.
std::size_t numbers_of_rank(const TrainingConfig& config) {
  const std::size_t tokens = tokens_of_rank(config);
  if (config.model.architecture == layers::Architecture::decoder) return 2 * tokens;
  return 3 * tokens + tokens / static_cast<std::size_t>(config.own_sequence()) +
         (config.model.encoder_decoder() ? 2 * pairs_of_positions(config) : 0);
}

}  // namespace

int counted_tokens(std::uint64_t seed, std::int64_t step, int index, int sequences, int tokens) {
  if (step % 4 == 0 && index >= (sequences + 1) / 2) return 0;
  const double part =
      machine::uniform(seed ^ 0x636f756e74u, static_cast<std::uint64_t>(step * sequences + index));
  return std::max(index == 0 ? 1 : 0, static_cast<int>(part * (tokens + 1)));
}

StepTokens::StepTokens(const TrainingConfig& config, const Corpus& corpus, int dp_rank, int cp_rank)
    : config_(config),
      corpus_(corpus),
      dp_rank_(dp_rank),
      positions_(
          config.context.placement(config.model.sequence, config.degrees.cp).segments(cp_rank)),
      whole_(4 * static_cast<std::size_t>(config.model.sequence)) {}

std::size_t StepTokens::third() const { return 2 * tokens_of_rank(config_); }
std::size_t StepTokens::lengths() const { return 3 * tokens_of_rank(config_); }
std::size_t StepTokens::buckets() const {
  return numbers_of_rank(config_) - 2 * pairs_of_positions(config_);
}

void StepTokens::allocate(machine::Device& device) {
  device_ = &device;
  const std::size_t count = numbers_of_rank(config_), bytes = count * sizeof(std::int32_t);
  host_ = machine::make_host_device_beside(device);
  drawn_memory_ = host_->allocate(bytes, machine::Category::buffers);
  drawn_ = {static_cast<std::int32_t*>(drawn_memory_.data()), count};
  tokens_ = device.allocate(bytes, machine::Category::buffers);
  if (config_.model.encoder_decoder())
    for (const bool causal : {false, true})
      layers::relative_buckets(
          config_.model.sequence, causal,
          drawn_.subspan(buckets() + (causal ? pairs_of_positions(config_) : 0),
                         pairs_of_positions(config_)));
  if (config_.counts_tokens())
    counted_ = machine::Tensor(device, machine::Dtype::float64, {1}, machine::Category::buffers);
}

std::size_t StepTokens::bytes(const TrainingConfig& config) {
  return numbers_of_rank(config) * sizeof(std::int32_t) +
         (config.counts_tokens() ? sizeof(double) : 0);
}

void StepTokens::draw(std::int64_t step) {
  if (copied_) copied_->synchronize();
  const auto length = static_cast<std::size_t>(config_.model.sequence),
             own = static_cast<std::size_t>(config_.own_sequence());
  const int of_a_rank = config_.batch.global_batch_size / config_.degrees.dp;
  first_ = static_cast<std::uint64_t>(step * config_.batch.global_batch_size +
                                      std::int64_t{dp_rank_} * of_a_rank);
  const std::size_t half = tokens_of_rank(config_);
  const bool has_third = config_.model.architecture != layers::Architecture::decoder;
  double mine = 0;
  for (std::size_t i = 0; i < half / own; ++i) {
    draw_sequence(i);
    if (config_.uneven_tokens) ignore_tail(step, i);
    std::int32_t* token = drawn_.data() + i * own;
    for (const layers::Segment& segment : positions_)
      for (std::int64_t at = 0; at < segment.count; ++at, ++token) {
        const auto position = static_cast<std::size_t>(segment.global + at * segment.stride);
        token[0] = whole_[position];
        token[half] = whole_[length + position];
        if (has_third) token[2 * half] = whole_[2 * length + position];
        mine += token[half] >= 0;
      }
  }
  if (config_.counts_tokens()) from_doubles(counted_, {mine});
  device_->stream().copy(tokens_.data(), drawn_.data(), tokens_.bytes());
  copied_ = device_->stream().record();
}

void StepTokens::ignore_tail(std::int64_t step, std::size_t index) {
  const int sequences = config_.batch.global_batch_size;
  const auto first = static_cast<int>(static_cast<std::int64_t>(first_) - step * sequences);
  const int counted = counted_tokens(config_.seed, step, first + static_cast<int>(index), sequences,
                                     config_.model.sequence);
  const auto targets = whole_.begin() + config_.model.sequence;
  std::fill(targets + counted, targets + config_.model.sequence, -1);
}

void StepTokens::draw_sequence(std::size_t index) {
  const TrainingConfig::Model& model = config_.model;
  const int sequence = model.sequence;
  const auto length = static_cast<std::size_t>(sequence);
  const std::uint64_t number = first_ + index;
  const std::span<std::int32_t> whole(whole_);
  const auto tokens = whole.first(length), targets = whole.subspan(length, length),
             third = whole.subspan(2 * length, length);
  if (model.encoder_decoder()) {
    std::vector<std::int32_t> next(2 * length);
    corpus_.draw(config_.seed, number, 2 * sequence, whole.data(), next.data());
    std::ranges::copy(targets, third.begin());  // the decoder's tokens
    std::copy(next.begin() + sequence, next.end(), targets.begin());
    const int read = prefix_length(config_.seed, number, length);
    std::fill(tokens.begin() + read, tokens.end(), 0);
    drawn_[lengths() + index] = read;
    return;
  }
  corpus_.draw(config_.seed, number, sequence, tokens.data(), targets.data());
  if (model.encoder())
    drawn_[lengths() + index] =
        mask_tokens(config_.seed, number, model.tokens > 0 ? model.tokens : model.vocabulary,
                    {tokens, targets, third});
}

layers::TokenBatch StepTokens::batch(int micro_batch) const {
  const int rows = config_.batch.micro_batch_size;
  const std::int64_t sequences = micro_batch * std::int64_t{rows};
  const auto* all = static_cast<const std::int32_t*>(tokens_.data());
  const auto* drawn = all + sequences * config_.own_sequence();
  layers::TokenBatch batch{
      drawn,
      drawn + tokens_of_rank(config_),
      rows,
      {config_.seed, (static_cast<std::int64_t>(first_) + sequences) * config_.model.sequence}};
  if (config_.model.architecture == layers::Architecture::decoder) return batch;
  batch.lengths = all + lengths() + sequences;
  if (config_.model.encoder_decoder()) {
    batch.decoder_tokens = drawn + third();
    batch.encoder_buckets = all + buckets();
    batch.decoder_buckets = batch.encoder_buckets + pairs_of_positions(config_);
  } else {
    batch.types = drawn + third();
  }
  return batch;
}

}  // namespace suite

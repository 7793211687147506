#pragma once
// The tokens and targets of one rank in one step, on its device.
//
//   StepTokens tokens(config, corpus, dp_rank);
//   tokens.allocate(device);
//   tokens.draw(step);
//   part.forward(micro_batch, tokens.batch(micro_batch), in, out);
//
// Sequences are numbered over all steps; within a step by dp rank, then by micro-batch. With uneven
// tokens only the first tokens of a sequence count for the loss.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "layers/models/gpt.h"
#include "machine/device/memory.h"
#include "machine/device/tensor.h"
#include "suite/configuration/training_config.h"
#include "suite/files/corpus.h"

namespace suite {

// With uneven tokens: how many of a sequence's tokens count in a step of `sequences`. Depends only
// on global indices. At least one token of a step counts; in every fourth step none of the second
// half of the sequences has any.
int counted_tokens(std::uint64_t seed, std::int64_t step, int index, int sequences, int tokens);

class StepTokens {
 public:
  // Both must outlive this object.
  StepTokens(const TrainingConfig& config, const Corpus& corpus, int dp_rank)
      : config_(config), corpus_(corpus), dp_rank_(dp_rank) {}

  void allocate(machine::Device& device);
  void draw(std::int64_t step);
  layers::TokenBatch batch(int micro_batch) const;
  // With uneven tokens one double, the number of this rank's tokens that count; else empty.
  const machine::Tensor& counted() const { return counted_; }

  static std::size_t bytes(const TrainingConfig& config);  // of buffers

 private:
  void count(std::int64_t step);

  const TrainingConfig& config_;
  const Corpus& corpus_;
  int dp_rank_;
  machine::Device* device_ = nullptr;
  std::uint64_t first_ = 0;  // sequence of this rank in this step
  machine::Memory tokens_;   // int32: all micro-batches' tokens, then their targets
  std::vector<std::int32_t> drawn_;
  machine::Tensor counted_;
};

}  // namespace suite

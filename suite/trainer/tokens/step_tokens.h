#pragma once
// The tokens and targets of one rank in one step, on its device.
//
//   StepTokens tokens(config, corpus, dp_rank, cp_rank);
//   tokens.allocate(device);
//   tokens.draw(step);
//   part.forward(micro_batch, tokens.batch(micro_batch), in, out);
//
// Sequences are numbered over all steps; in a step by dp rank, then by micro-batch. A rank of
// cp has its positions of every sequence. With uneven tokens only the first tokens of a sequence
// count for the loss. An encoder has masked tokens (encoder_examples.h), the types of the tokens
// and the lengths of the sequences; an encoder-decoder the tokens of both stacks, these lengths,
// and the buckets of relative positions.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "layers/models/gpt.h"
#include "machine/device/device.h"
#include "machine/device/memory.h"
#include "machine/device/tensor.h"
#include "suite/configuration/training_config.h"
#include "suite/files/corpus.h"

namespace suite {

// Returns the number of a sequence's tokens that count in a step of `sequences`, with uneven
// tokens. Depends only on global indices. At least one token of a step counts. In every fourth step
// no token of the second half of the sequences counts.
int counted_tokens(std::uint64_t seed, std::int64_t step, int index, int sequences, int tokens);

class StepTokens {
 public:
  // Both must outlive this object.
  StepTokens(const TrainingConfig& config, const Corpus& corpus, int dp_rank, int cp_rank);

  void allocate(machine::Device& device);
  void draw(std::int64_t step);
  layers::TokenBatch batch(int micro_batch) const;
  // Returns the number of this rank's tokens that count, one double, if config.counts_tokens();
  // else empty.
  const machine::Tensor& counted() const { return counted_; }

  static std::size_t bytes(const TrainingConfig& config);  // bytes of the buffers

 private:
  // Removes the targets of the drawn sequence that do not count.
  void ignore_tail(std::int64_t step, std::size_t index);
  // Draws one sequence into whole_, and its length into drawn_.
  void draw_sequence(std::size_t index);
  // Return where the rank's types or decoder's tokens, the lengths and the buckets begin in drawn_.
  std::size_t third() const;
  std::size_t lengths() const;
  std::size_t buckets() const;

  const TrainingConfig& config_;
  const Corpus& corpus_;
  int dp_rank_;
  std::vector<layers::Segment> positions_;  // of this rank
  std::vector<std::int32_t> whole_;  // one sequence: its tokens, its targets, then its types or
                                     // decoder's tokens; the rest is for drawing
  machine::Device* device_ = nullptr;
  std::uint64_t first_ = 0;  // first sequence of this rank in this step
  // int32: all micro-batches' tokens, then their targets; then of an encoder the types, of an
  // encoder-decoder the decoder's tokens; then the lengths of the sequences, and the buckets.
  machine::Memory tokens_;
  // The same in pinned host memory, so the host does not wait for the copy.
  std::unique_ptr<machine::Device> host_;
  machine::Memory drawn_memory_;
  std::span<std::int32_t> drawn_;
  std::unique_ptr<machine::Event> copied_;  // the device has read drawn_
  machine::Tensor counted_;
};

}  // namespace suite

#pragma once
// The common part of sparse codes whose length depends on the values. Ranks first gather their
// counts, then from each rank a list of the largest count: a rank receives (N - 1) (4 + 4 words
// most) bytes. The host reads the counts, so on a GPU it waits for them.
//
// If any rank has a value that is not finite, all elements of the sum are NaN on all ranks, and the
// residual of those values is zero.

#include <memory>

#include "collectives/compression/compressed_all_reduce.h"
#include "machine/device/selection/selection.h"

namespace collectives {

class ChosenElements : public CompressedAllReduce {
 public:
  Selected selected() const override { return selected_; }
  bool only_queues() const override { return false; }

 protected:
  // words: of 32 bits, for each element of a list.
  ChosenElements(const CompressionSetup& setup, int words);

  virtual void choose(const machine::Tensor& values) = 0;
  // list: uint32, at least as many words as the chosen elements have.
  virtual void take(const machine::Tensor& values, const machine::Tensor& list) = 0;
  // Adds the first `chosen` elements of a list.
  virtual void add(const machine::Tensor& list, std::int64_t chosen,
                   const machine::Tensor& sum) = 0;

  machine::Selection& selection() { return *selection_; }

 private:
  void exchange(const machine::Tensor& held, const machine::Tensor& sum) override;
  // Returns the counts of all ranks, in memory of the host.
  const std::int32_t* gathered_counts();

  int words_;
  std::unique_ptr<machine::Selection> selection_;
  std::unique_ptr<machine::Device> pinned_;  // of the counts; null: the device is the host
  machine::Tensor counts_, read_counts_;
  machine::Tensor mine_, all_;  // lists, as long as any run has needed
  Selected selected_;
};

}  // namespace collectives

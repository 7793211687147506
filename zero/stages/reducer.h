#pragma once
// Sums the gradients of a bucket: over the embedding group, over tp, then over dp. The sum over dp
// runs as a transfer, one bucket at a time if buckets need memory of their own.

#include <functional>
#include <optional>

#include "zero/stages/transfers.h"

namespace zero {

class Reducer {
 public:
  Reducer(const StepContext& context, Transfers& transfers)  // both must outlive this
      : context_(context), transfers_(transfers) {}

  // Waits for the pending bucket if the next one needs memory.
  void make_room();
  // gradients: of the whole bucket. over_dp sums them over dp. wire: the same tensor, or memory for
  // the same number of elements in the wire's dtype. over_dp may run on another thread, and must
  // not allocate memory.
  using OverDp = std::function<void(const Tensor& gradients, const Tensor& wire)>;
  void reduce(std::size_t index, const Tensor& gradients, const OverDp& over_dp);
  // Sums only over the groups before dp.
  void reduce_segments(const Bucket& bucket, const Tensor& gradients) const;
  // Waits for the pending bucket and frees its memory.
  void collect();

 private:
  struct UnderWay {
    Tensor gradients, wire;
    Transfers::Ticket ticket;
  };

  const StepContext& context_;
  Transfers& transfers_;
  std::optional<UnderWay> under_way_;
};

}  // namespace zero

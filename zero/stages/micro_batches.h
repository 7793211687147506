#pragma once
// Tracks which gradients of a micro-batch are ready, and orders the buckets for reduction.
//
//   batches.begin(last);
//   batches.ready(part);
//   while (const auto bucket = batches.take_complete()) …
//
// Buckets are taken in the order of the layout, not in the order in which they become ready, so all
// ranks reduce the same one. Frozen buckets are never taken.

#include <cstddef>
#include <optional>
#include <vector>

#include "zero/stages/step_context.h"

namespace zero {

class MicroBatches {
 public:
  explicit MicroBatches(const StepContext& context);  // context: must outlive this

  // Throws std::logic_error if a micro-batch is open, or if the step has begun to take buckets
  // after its last micro-batch.
  void begin(bool last);
  // Throws std::logic_error if no micro-batch is open, or if a gradient is ready twice in it.
  void ready(const Part& part);
  void end();
  bool is_open() const { return open_; }
  bool is_last() const { return last_; }

  std::size_t trained() const { return trained_; }  // buckets that are not frozen; they come first
  // Returns the next bucket if all its gradients are ready and it has no tied embedding. The other
  // stage of a tied embedding may still need this stage for its backward.
  std::optional<std::size_t> take_complete();
  // Returns the next bucket, ready or not. After the last bucket it returns an empty value, and
  // then starts again with the first.
  std::optional<std::size_t> take_next();
  bool is_taken(int bucket) const { return static_cast<std::size_t>(bucket) < next_; }

 private:
  bool is_tied(const Bucket& bucket) const;

  const StepContext& context_;
  std::size_t trained_ = 0;
  bool open_ = false, last_ = false;
  std::size_t next_ = 0;       // bucket
  std::vector<bool> ready_;    // by row
  std::vector<int> expected_;  // by bucket: rows that are not ready
};

}  // namespace zero

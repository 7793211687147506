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
  explicit MicroBatches(const StepContext& context);  // which outlives this

  // Throws std::logic_error if one is open, or if buckets are taken: the last one has been.
  void begin(bool last);
  // Throws std::logic_error if no micro-batch is open, or if a gradient is ready twice in it.
  void ready(const Part& part);
  void end();
  bool is_open() const { return open_; }
  bool is_last() const { return last_; }

  std::size_t trained() const { return trained_; }  // buckets that are not frozen: the first ones
  // The next bucket, if all its gradients are ready and it holds no tied embedding, whose other
  // stage may still need this one for its backward.
  std::optional<std::size_t> take_complete();
  // Returns the next bucket, ready or not; none after the last one, then the first again.
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

#pragma once
// Tracks which gradients of a pass are ready, and orders the buckets for reduction.
//
//   batches.begin({.last = last});
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

// A pass of a micro-batch through the rank's layers. If backward follows forward, the whole
// micro-batch is one pass. With pipelines, every forward and every backward of a chunk is one.
struct Pass {
  bool last = false;  // the last one of the step that adds gradients
  int which = 0;      // passes of equal number use the same values in the same order
  // The parameters whose gradients the pass adds, from stage 2 on; null: all. No bucket holds
  // parameters of two such lists, except a table that two chunks share.
  const Part* gradients = nullptr;
  // Every use follows one of the micro-batch's forward, which is another pass (with pipelines).
  bool backward = false;
};

class MicroBatches {
 public:
  explicit MicroBatches(const StepContext& context);  // context: must outlive this

  // Throws std::logic_error if a pass is open, or if the step has begun to take buckets after its
  // last pass.
  void begin(const Pass& pass);
  // Throws std::logic_error if no pass is open, or if a gradient is ready twice in it.
  void ready(const Part& part);
  void end();
  bool is_open() const { return open_; }
  bool is_last() const { return last_; }
  int which() const { return which_; }
  bool is_backward() const { return backward_; }

  std::size_t trained() const { return trained_; }  // buckets that are not frozen; they come first
  // Returns the next bucket of the pass if all its gradients are ready. Before stage 2 a bucket
  // with a tied embedding is never complete: the other stage may still need this stage for its
  // backward.
  std::optional<std::size_t> take_complete();
  // Returns the next bucket, ready or not. After the last bucket it returns an empty value, and
  // then starts again with the first.
  std::optional<std::size_t> take_next();
  bool is_taken(int bucket) const;

 private:
  const StepContext& context_;
  std::size_t trained_ = 0;
  bool open_ = false, last_ = false, backward_ = false;
  int which_ = 0;
  std::vector<std::size_t> order_;  // the buckets of the pass
  std::size_t next_ = 0;            // in that order
  std::vector<bool> ready_;         // by row
  std::vector<int> expected_;       // by bucket: rows that are not ready
};

}  // namespace zero

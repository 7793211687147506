#pragma once
// The optimizer step of one rank: reduce the gradients, measure their norm, clip, update, publish.
//
//   GradientPlan plan = gradient_plan(parameters, dtype, grid, tokens);
//   FlatStates states(device, plan, parameters);            // then set the initial values
//   auto step = make_step(stage, states, plan, {&tp, &pp, &dp, &embedding}, options);
//   for each micro-batch:
//     step->begin_micro_batch(last);           // or begin_pass, with pipelines
//     forward:  for each part, before_use, …, after_use
//     backward: for each part, before_use, before_gradients, …, after_use, gradients_ready
//     step->end_micro_batch();
//   StepResult result = step->step();
//
// A part is a list of parameters that are used together. Stages 0 and 1 do not require the calls
// for micro-batches, but start to reduce a bucket as soon as the last micro-batch completes it.
// Stages 2 and 3 require all calls, the same on all ranks of dp in the same order. A gradient is
// ready at most once in a pass. A gradient that is never ready counts as zero.
//
// A step first sums each bucket (layout.h) over the embedding group, tp and dp, as the plan
// specifies. Stages 2 and 3 sum each pass over tp and dp, and at the end of the step the shards of
// tied embeddings over the embedding group, because the two stages pass at different times. Then it
// computes the global norm. Then it updates, with a gradient scale of the plan's divisor, the loss
// scale and the clipping. Then it publishes the values over dp and sets the gradients to zero.
// offload_optimizer selects where the optimizer's states are stored. A skipped step does not change
// the states, and leaves a delayed update pending.
//
// With overlap_comm a bucket's values are published as soon as its owners have updated them, while
// the next bucket is updated. This can continue when the next step's forward begins (Megatron-LM's
// overlap-grad-reduce and overlap-param-gather). On a GPU this happens in the stream of the dp
// group's link. The last bucket is published first because forward needs it first, and before_use
// waits for the buckets of its part. So with overlap_comm stages 1 to 3 require before_use, or
// wait_for_values(), before values are read. Other users of the dp group must also call
// wait_for_values().
//
// The parts of a step: MicroBatches (selects the next bucket), Reducer, Publisher, and Transfers,
// which runs their collectives over dp.
//
// A ZeRO stage is a subclass. It defines the part of the flat buffers that a rank holds, and the
// sum of gradients over dp into that part. It also defines the transfer of values from their owners
// to all ranks. To add a stage, write a header like stage1.h, an arm in make_step, its volume in
// cost.cpp and its memory in memory_cost.cpp.
//
// All stages with one layout compute the same norm and the same step, bit for bit, if all-reduce
// and reduce-scatter sum in the same order. The algorithm direct does; ring and the libraries over
// more than two ranks do not. With gradient accumulation, stages 0 and 1 agree with each other,
// because both add micro-batches before ranks. Stages 2 and 3 agree with each other, because both
// add ranks before micro-batches; with pipelines they add the two stages of a tied embedding last.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "zero/optimizers/global_norm.h"
#include "zero/stages/compressed_reduction.h"
#include "zero/stages/micro_batches.h"
#include "zero/stages/publisher.h"
#include "zero/stages/reducer.h"
#include "zero/stages/step_context.h"
#include "zero/stages/transfers.h"

namespace zero {

struct StepResult {
  // The norm of the whole model's gradient, divided by the plan's divisor and the loss scale,
  // before clipping: the square root of the sum of squares in double. Infinite or NaN if any rank's
  // gradient is; then no value is updated. If a 1-bit optimizer sums momenta, the largest of the
  // norms of the ranks of dp, each of its own gradient times dp.
  double gradient_norm = 0;
  // min(1, clip_norm / gradient_norm); no epsilon is added. If momenta are summed, with the norm of
  // this rank.
  double clip_factor = 1;
  bool updated = false;  // the same on all ranks
};

class OneBitOptimizer;

class Step {
 public:
  using Part = zero::Part;
  virtual ~Step() = default;

  void begin_micro_batch(bool last) { begin_pass({.last = last}); }
  void begin_pass(const Pass& pass);
  virtual void before_use(const Part& part);     // values are valid until after_use
  virtual void after_use(const Part&) {}         // once for each before_use
  virtual void before_gradients(const Part&) {}  // gradients are valid until they are ready
  void gradients_ready(const Part& part);
  void end_micro_batch() { end_pass(); }
  void end_pass();

  // The two halves of a step, for oracles that read the summed gradients in between. Each is
  // collective over all ranks of the grid. Call reduce once, then update once.
  void reduce();
  StepResult update();
  // A launch has repeated all passes of a step and reduce(), which a graph captured.
  void set_reduced();
  StepResult step() {
    reduce();
    return update();
  }
  // Waits until all values of the last update have arrived, except those gathered for each use, and
  // no transfer over dp is pending. The next micro-batch or step starts new ones.
  void wait_for_values() { publisher_.wait(); }
  // Calls wait_for_values and applies a delayed update. Collective over dp. With delayed_update it
  // publishes the values once more.
  void drain();
  // Publishes the values after other code has set those of the ranges that this rank owns (a
  // checkpoint). Collective over dp.
  void values_loaded();
  // For oracles, between reduce and update. If a rank holds only its shards, sets every
  // parameter.gradient to the whole sum (not yet divided). The traffic is not part of a step.
  virtual void gather_gradients() {}

  // The divisor of the sum. The default is the plan's; a step that counts its tokens sets it. Equal
  // on all ranks. Throws std::invalid_argument unless positive.
  double divisor() const { return divisor_; }
  void set_divisor(double divisor);

  // The factor of the loss and so of the gradients; the update divides by it.
  double loss_scale() const { return loss_scale_; }
  void set_loss_scale(double scale);  // throws std::invalid_argument unless positive and finite

  // Returns the optimizer of the elements that this rank updates: all of the flat buffers, or its
  // shard of each bucket.
  OwnedOptimizer& optimizer() { return *optimizer_; }
  const OwnedOptimizer& optimizer() const { return *optimizer_; }
  // Return the bytes that offload_optimizer and offload_param have moved so far, and a note for the
  // record.
  virtual OffloadTraffic moved() const { return optimizer_->moved(); }
  virtual std::string offload_note() const { return optimizer_->note(); }
  // Returns the device whose memory offloaded states and values use; null without offload.
  const machine::Device* host() const { return host_; }
  const GradientPlan& plan() const { return context_.plan; }
  // Returns null without gradient compression, or at dp 1.
  const CompressedReduction* compressed() const { return compressed_.get(); }
  // Returns the device of residuals and codes of gradients or of momenta; null without them.
  const machine::Device* compression_host() const;

 protected:
  explicit Step(StepContext context);

  // For constructors: makes the optimizer. values: returns the values of a range of the flat
  // buffers.
  void make_optimizer(const std::function<Tensor(Range)>& values);
  void make_optimizer(std::vector<OwnedRange> owned);  // without their masks
  machine::Device& host_memory();                      // of the options, or made here

  const Layout& layout() const { return context_.layout(); }
  machine::Kernels& kernels() const { return context_.kernels(); }
  machine::Kernels& transfer_kernels() const { return context_.transfer_stream().kernels(); }
  int dp_rank() const { return context_.dp_rank(); }

  // Returns all gradients of a bucket, for its reduction.
  virtual Tensor take_gradients(std::size_t bucket);
  // Sums gradients over dp into the memory of gradients(). wire: the same tensor, or memory for the
  // same number of elements in the wire's dtype. Queues its work on transfer_kernels(). May run on
  // another thread, so it must not allocate or free memory.
  virtual void reduce_over_dp(const Bucket& bucket, const Tensor& gradients,
                              const Tensor& wire) = 0;
  // Sums a bucket's gradients on the wire, and returns the sums that this rank owns, in the wire's
  // dtype: all in stage 0, else its shard. Overwrites both tensors.
  virtual Tensor sum_over_dp(const Bucket& bucket, const Tensor& gradients,
                             const Tensor& wire) const;
  // Returns the summed gradients of a range that this rank owns.
  virtual Tensor gradients(Range range) const { return context_.states.gradients(range); }
  virtual Published published(std::size_t index) const;
  virtual void clear_gradients() { context_.states.clear_gradients(); }
  virtual void close_pass() {}
  virtual void values_changed() {}  // of the shards, before they are published
  // Returns whether the next update sums momenta, so that gradients are not summed over dp.
  bool sums_momenta() const;

  // For destructors: other ranks may be in a pending transfer.
  void finish() noexcept;

  const StepContext context_;
  MicroBatches micro_batches_;
  Transfers transfers_;

 private:
  void launch(std::size_t index);
  void reduce_tied_shards();
  void publish(std::size_t bucket);
  void publish_all();

  std::unique_ptr<CompressedReduction> compressed_;
  Reducer reducer_;
  Publisher publisher_;
  GlobalNorm norm_;
  std::vector<Range> owned_;
  // The bucket of each range. A published bucket has one range.
  std::vector<std::size_t> bucket_of_owned_;
  std::unique_ptr<machine::Device> own_host_;  // if the options have no host
  machine::Device* host_ = nullptr;
  std::unique_ptr<OwnedOptimizer> optimizer_;
  OneBitOptimizer* one_bit_ = nullptr;  // optimizer_, if it is one
  double divisor_, loss_scale_ = 1;
  bool reduced_ = false;
};

// Makes the step of a ZeRO stage. Stage 0 is data_parallel.h, stages 1 to 3 are stage1.h to
// stage3.h. Throws std::invalid_argument for another stage, and the exceptions of StepContext.
std::unique_ptr<Step> make_step(int stage, FlatStates& states, const GradientPlan& plan,
                                Communicators communicators, StepOptions options);

}  // namespace zero

#pragma once
// The options of a step (step.h): the rule, clipping, algorithms, sizes, overlap and offload.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>

#include "machine/device/tensor.h"
#include "zero/offload/offload.h"
#include "zero/offload/offload_param.h"
#include "zero/optimizers/optimizer.h"
#include "zero/zero_plus_plus/options.h"

namespace zero {

inline constexpr int num_stages = 4;  // ZeRO stages 0 to 3

class CompressionWatch;  // states/compression_watch.h

// Gradients are summed over dp from fewer bytes, with error feedback (collectives/compression).
struct GradientCompression {
  std::string algorithm = {};         // of gradient_compressions(); empty: none
  double density = 0.01;              // top_k: fraction of a segment's elements that a rank sends
  double deviations = 3;              // deviation: standard deviations that a sent element reaches
  CompressionWatch* watch = nullptr;  // for oracles, also of momenta
};

// Names and defaults of sizes are DeepSpeed's; sizes are elements.
struct StepOptions {
  Rule rule = AdamW{};
  double clip_norm = std::numeric_limits<double>::infinity();  // of the global norm; infinity: off
  // The algorithms of the dp group's collectives and of the all-reduces over the extra groups.
  // Empty: the communicator's (Communicator::set_algorithms).
  std::string all_reduce = {}, reduce_scatter = {}, all_gather = {};
  // A longer bucket of values is published in runs of at most this size (64 * dp at least).
  std::int64_t allgather_bucket_size = 500'000'000;
  // The dtype that gradients are sent and summed in over dp: float, bfloat16 or half (double for
  // gradients in double). Empty: their own dtype, in which micro-batches are added up.
  std::optional<Dtype> communication_data_type = {};
  // Stages 1 and 2: gradients are reduce-scattered to their owners; false: all-reduced (DeepSpeed's
  // reduce_scatter).
  bool reduce_scatters = true;
  // Stages 1 and 2: updated values are all-gathered; false: each owner broadcasts its shard
  // (DeepSpeed's allgather_partitions).
  bool all_gathers_values = true;
  // Gradients are divided before they are summed over dp, and multiplied again after: by dp, or
  // else by a factor. So sums of half overflow later. The sum is the same but for its rounding.
  bool prescale_gradients = false;
  double gradient_predivide_factor = 1;
  // ZeRO stages 0 and 1, for gradients in float. A segment (layout.h) has its own residual, because
  // all ranks that hold its parameters must select the same elements.
  GradientCompression gradient_compression = {};
  // A step whose gradients are not finite is skipped; false: it updates (bf16.check_grad_overflow).
  bool check_overflow = true;
  // Collectives over dp run on their own thread, or on a GPU in the stream of the group's link,
  // while the caller continues. The bits are the same.
  bool overlap_comm = false;
  // Stages 2 and 3. True: a bucket's gradients are in its buffer from the start. False: each
  // gradient has its own memory, and is copied when the bucket is complete.
  bool contiguous_gradients = true;
  // Stage 3: the maximum of the elements gathered ahead, and of all gathered elements.
  std::int64_t stage3_prefetch_bucket_size = 50'000'000;
  std::int64_t stage3_max_live_parameters = 1'000'000'000;
  // A bucket stays gathered if it is used again before this number of elements is used. 0: each use
  // gathers, as in ZeRO's paper. DeepSpeed's default is 1e9, which keeps all of smaller models.
  std::int64_t stage3_max_reuse_distance = 0;
  PlusPlusOptions plus_plus = {};  // stage 3
  StateOptions offload_optimizer = {};
  // Stage 3: selects where a rank's shards of the values are stored while they are not used.
  ValueOptions offload_param = {};
  // For tests and for slow links. poison_freed fills freed memory with NaN. before_transfer is
  // called before each transfer over dp with the bytes that a bandwidth-optimal collective sends
  // per rank.
  bool poison_freed = false;
  std::function<void(std::size_t bytes)> before_transfer = {};
};

}  // namespace zero

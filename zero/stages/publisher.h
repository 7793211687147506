#pragma once
// Sends updated values from their owners to all ranks of dp, bucket by bucket. A bucket that is
// longer than allgather_bucket_size is sent in runs, all-gathered through a staging buffer, or
// broadcast by one owner after another.

#include <cstdint>
#include <vector>

#include "zero/stages/transfers.h"

namespace zero {

// Returns the number of a shard's elements that are published at once.
std::int64_t publish_run(std::int64_t shard, int dp, std::int64_t allgather_bucket_size);

// A bucket's values: this rank's shard, and the whole bucket after an update. Both are empty if
// each use gathers the values.
struct Published {
  Tensor own, whole;
};

class Publisher {
 public:
  Publisher(const StepContext& context, Transfers& transfers);  // both must outlive this

  // Starts to publish a bucket. Other ranks have the previous values until the new ones arrive.
  void publish(std::size_t index, const Published& values);
  // Wait for the values of these parameters, or for all.
  void wait_for(const Part& part);
  void wait();

 private:
  // Start to send the part [begin, begin + size) of every shard.
  void all_gather(std::size_t index, const Published& values, std::int64_t begin, std::int64_t size,
                  bool staged);
  void broadcast(std::size_t index, const Published& values, std::int64_t begin, std::int64_t size);

  const StepContext& context_;
  Transfers& transfers_;
  Transfers::Ticket last_ = 0;                // of the pending values; 0: no values are pending
  std::vector<Transfers::Ticket> published_;  // by bucket
  Tensor staging_;                            // of runs of allgather_bucket_size
};

}  // namespace zero

#pragma once
// An all-reduce of float tensors that sends less than the values, and remembers what it left out.
//
//   auto compressed = make_compression("top_k", world, communicator, count, {.k = count / 100});
//   compressed->run(gradient, sum);   // sum = what all ranks transmitted, on all ranks
//
// A rank compresses the values v = in + residual, transmits t and keeps residual = v - t (error
// feedback: Seide et al., Interspeech 2014, "1-bit stochastic gradient descent and its application
// to data-parallel distributed training of speech DNNs"; sparsified SGD with memory: Stich et al.
// 2018, arXiv:1809.07599). Nothing is lost: over any number of runs, everything put in equals
// everything that came out plus what is held back now, but for roundings of float. Without feedback
// v = in, and the residual only shows what the last run left out.
//
// Tensors are float of `count` elements; out may be in. Sums are kept in float, in the order of
// ranks: all ranks get the same bits, and the same again from the same inputs. CUDA tensors are
// staged through host memory and compressed there.
//
// NaN and infinity come out on every rank, never as a number, and are not kept in the residual:
// where, and how far they spread, each algorithm says.
//
// All members are collective but the accessors. Throws std::invalid_argument for a count, a dtype
// or an option that doesn't fit, and what Communicator throws.

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "collectives/communicator/communicator.h"

namespace collectives {

struct CompressionOptions {
  std::int64_t k = 1;    // top_k: elements a rank sends; at least 1, all when more than there are
  float threshold = 1;   // threshold: what is sent for each element as large; finite, above 0
  bool feedback = true;  // carry the residual into the next run
};

// The arguments of make_compression.
struct CompressionSetup {
  machine::World& world;
  Communicator& communicator;
  std::int64_t count;
  CompressionOptions options;
};

class CompressedAllReduce {
 public:
  virtual ~CompressedAllReduce();
  CompressedAllReduce(const CompressedAllReduce&) = delete;
  CompressedAllReduce& operator=(const CompressedAllReduce&) = delete;

  void run(const machine::Tensor& in, const machine::Tensor& out);
  // As if nothing had run.
  void reset();

  std::int64_t count() const { return setup_.count; }
  const machine::Tensor& residual() const { return values_; }  // float [count], on the host
  // What this rank holds that no sum has reached: its residual, and of the share that it reduces
  // for all (where an algorithm does so) that reduction's. For oracles and tests.
  virtual std::vector<double> held_back() const;

  // Where the last run spent its time, on this rank; exchange holds the waiting for others.
  struct Seconds {
    double compress = 0, exchange = 0, decompress = 0;
  };
  const Seconds& seconds() const { return seconds_; }

 protected:
  explicit CompressedAllReduce(const CompressionSetup& setup);

  // values: v, on return v - t. out: the sum of all ranks' t. count is at least 1.
  virtual void exchange(float* values, float* out) = 0;
  virtual void forget() {}  // of reset: what an algorithm keeps beside the residual

  int rank() const { return setup_.communicator.rank(); }
  int ranks() const { return setup_.communicator.size(); }
  Communicator& communicator() { return setup_.communicator; }
  const CompressionOptions& options() const { return setup_.options; }
  machine::Tensor host_tensor(machine::Dtype dtype, std::int64_t elements) const;
  // Ends a phase that began when the last one ended.
  void lap(double Seconds::*phase);

 private:
  CompressionSetup setup_;
  machine::Tensor values_, staged_;
  Seconds seconds_;
  double lap_began_ = 0;
};

// An algorithm as listed: `shardmark list`, axis values and tests read compressions().
struct Compression {
  std::string_view name, source;
  std::unique_ptr<CompressedAllReduce> (*make)(const CompressionSetup& setup);
};
const std::vector<Compression>& compressions();
// Throws std::invalid_argument naming the nearest right name.
std::unique_ptr<CompressedAllReduce> make_compression(std::string_view name, machine::World& world,
                                                      Communicator& communicator,
                                                      std::int64_t count,
                                                      const CompressionOptions& options = {});

}  // namespace collectives

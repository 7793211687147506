#pragma once
// An all-reduce of float tensors that sends less than the values, and keeps the rest for later.
//
//   auto compressed = make_compression("top_k", host, communicator, count, {.k = count / 100});
//   compressed->run(gradient, sum);   // the sum of all transmitted values, on all ranks
//
// A rank compresses the values v = in + residual, transmits t and keeps residual = v - t (error
// feedback: Seide et al., Interspeech 2014, "1-bit stochastic gradient descent and its application
// to data-parallel distributed training of speech DNNs"; sparsified SGD with memory: Stich et al.
// 2018, arXiv:1809.07599). Nothing is lost: over all runs, the sum of the inputs equals the sum of
// the outputs plus the values held back now, except for roundings of float. Without feedback v =
// in, and the residual only shows the error of the last run.
//
// Tensors are float, of `count` elements; out may be in. Sums are in float, in the order of ranks:
// all ranks get the same bits, and the same inputs give the same bits again. On a GPU, values stay
// in its memory, and calls only queue work if only_queues(). With a host device, CUDA tensors are
// staged through host memory and compressed there.
//
// NaN and infinity arrive on every rank, never as a number, and are not kept in the residual. Each
// algorithm documents their place and how far they spread.
//
// All members except the accessors are collective. Throws std::invalid_argument for an invalid
// count, dtype or option, and the exceptions of Communicator.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/communicator/communicator.h"

namespace collectives {

struct CompressionOptions {
  std::int64_t k = 1;     // top_k: elements that a rank sends, at most all; at least 1
  float threshold = 1;    // threshold: sent for each element of this size; finite, above 0
  double deviations = 3;  // deviation: standard deviations that a sent element reaches; above 0
  bool feedback = true;   // carry the residual into the next run
};

// The arguments of make_compression. device: that of residuals and codes. pages: that of the
// staging of CUDA tensors; null: device.
struct CompressionSetup {
  machine::Device& device;
  Communicator& communicator;
  std::int64_t count;
  CompressionOptions options;
  machine::Device* pages = nullptr;
};

class CompressedAllReduce {
 public:
  virtual ~CompressedAllReduce();
  CompressedAllReduce(const CompressedAllReduce&) = delete;
  CompressedAllReduce& operator=(const CompressedAllReduce&) = delete;

  void run(const machine::Tensor& in, const machine::Tensor& out);
  // Returns to the state before the first run.
  void reset();

  std::int64_t count() const { return setup_.count; }
  const machine::Tensor& residual() const { return values_; }  // float [count]
  // Returns the values of this rank that no sum contains yet: its residual, and the residual of the
  // share that it reduces, if the algorithm has one. For oracles and tests.
  virtual std::vector<double> held_back() const;

  // Whether a run on a GPU only queues work. Else the host also waits for the GPU.
  virtual bool only_queues() const { return true; }

  // The elements that the fullest rank sent in the last run, and in any run: of algorithms whose
  // volume depends on the values.
  struct Selected {
    std::int64_t last = 0, largest = 0;
  };
  virtual Selected selected() const { return {}; }

  // The phases of the last run on this rank, zero on a GPU. exchange includes waiting for others.
  struct Seconds {
    double compress = 0, exchange = 0, decompress = 0;
  };
  const Seconds& seconds() const { return seconds_; }

 protected:
  explicit CompressedAllReduce(const CompressionSetup& setup);

  // values: v, on return v - t. out: the sum of all ranks' t. count is at least 1.
  virtual void exchange(const machine::Tensor& values, const machine::Tensor& out) = 0;
  virtual void forget() {}  // called by reset; clears the algorithm's other state

  int rank() const { return setup_.communicator.rank(); }
  int ranks() const { return setup_.communicator.size(); }
  Communicator& communicator() { return setup_.communicator; }
  const CompressionOptions& options() const { return setup_.options; }
  machine::Tensor buffer(machine::Dtype dtype, std::int64_t elements) const;
  // Throws std::invalid_argument if an index of so many elements does not fit into 31 bits.
  static void reject_long_index(std::int64_t count);
  machine::Stream& stream() const { return setup_.device.stream(); }
  // Ends a phase that began at the end of the last phase.
  void lap(double Seconds::*phase);

 private:
  CompressionSetup setup_;
  machine::Tensor values_;
  Staging staging_;
  Seconds seconds_;
  double lap_began_ = 0;
};

// An algorithm for `shardmark list`, axis values and tests.
struct Compression {
  std::string_view name, source;
  std::unique_ptr<CompressedAllReduce> (*make)(const CompressionSetup& setup);
};
const std::vector<Compression>& compressions();
std::vector<std::string> compression_names();
// Throws std::invalid_argument that names the nearest valid name.
std::unique_ptr<CompressedAllReduce> make_compression(
    std::string_view name, machine::Device& device, Communicator& communicator, std::int64_t count,
    const CompressionOptions& options = {}, machine::Device* pages = nullptr);

}  // namespace collectives

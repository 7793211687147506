#pragma once
// Attention whose sequence is split over ranks as a unit: forward and backward, judged by every
// oracle. This is the common part of ring_attention and ulysses_attention.
//
// Notation of the claims of rank r of P: S positions of a sequence, of which a rank has rows(r);
// n tokens = micro-batch-size * rows of the own rank, m of the rank with most, T of all; D columns
// of queries, K of keys, H heads; E bytes of a value, A of an accumulator.
//
// numerics: out and the gradients, compared with plain loops in double over whole sequences
// (suite/reference/attention_reference.h). volume: bytes and messages of each pass, exactly.
// memory: peaks of activations and buffers, exactly. determinism: a second run.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "collectives/communicator/calls.h"
#include "collectives/communicator/communicator.h"
#include "layers/context_parallel/core_attention.h"
#include "machine/link/connect.h"
#include "suite/reference/attention_reference.h"
#include "suite/reference/unit.h"

namespace suite {

struct ContextParallelCase {
  int ranks = 1;
  Transport transport{};
  Dtype dtype{};
  std::string cp_comm_type = "p2p";  // of ring_attention: Megatron's name of the algorithm
  std::string placement = "zigzag";
  bool causal = true;
  // Megatron's arguments. kv-channels: columns of a head.
  int micro_batch_size = 1, seq_length = 1, num_attention_heads = 1, num_query_groups = 1,
      kv_channels = 1;
};

// Returns the axes that both units have, without slices.
Sweep<ContextParallelCase> context_parallel_axes();
// Returns why the sizes of a case are not valid, or empty. Throws UsageError for a size below 1.
std::string why_no_sizes(const ContextParallelCase& c);

// The sizes of the notation, and the tokens of each rank, which this class finds position by
// position.
struct ContextParallelSizes {
  ContextParallelSizes(const ContextParallelCase& c, int rank);
  std::uint64_t n, m = 0, T, D, K, H, E, A, P;
  std::uint64_t next, previous;  // tokens of the neighbours in the ring
};
// Returns the rank that holds a position.
int owner_of(const ContextParallelCase& c, std::int64_t position);

struct ContextParallelClaims {
  using ByLabel = std::map<machine::TrafficLabel, machine::Traffic>;
  ByLabel forward, backward;
  std::size_t saved = 0;    // bytes kept from forward for backward
  std::size_t buffers = 0;  // peak bytes, without the caller's tensors and scratch of collectives
  std::size_t scratch = 0;  // of collectives
};

class ContextParallelShell {
 public:
  using Case = ContextParallelCase;
  static constexpr Oracle oracles[] = {Oracle::numerics, Oracle::volume, Oracle::memory,
                                       Oracle::determinism};
  ContextParallelShell(const Case& c, Context& context);
  virtual ~ContextParallelShell() = default;
  ContextParallelShell(const ContextParallelShell&) = delete;
  ContextParallelShell& operator=(const ContextParallelShell&) = delete;
  static std::string why_not(const Case& c, const Context& context);

  void prepare() {}
  void run() {
    forward();
    backward();
  }
  void judge(Judge& judge);
  Cost cost() const;

 protected:
  virtual void forward() = 0;
  virtual void backward() = 0;
  virtual ContextParallelClaims claims() const = 0;
  // Begins to count memory. Called when all tensors of the caller exist.
  void ready();

  Case case_;
  Context& context_;
  harness::PeakMeter memory_;
  collectives::Communicator cp_;
  layers::CoreAttention attention_;
  ContextParallelSizes sizes_;
  Tensor q_, k_, v_, out_, d_out_;
  layers::AttentionGradients gradients_;

 private:
  std::vector<double> draw(std::uint64_t which, std::int64_t width) const;
  std::vector<double> own_rows(const std::vector<double>& whole) const;
  std::size_t passed_bytes() const;
  void judge_numerics(Judge& judge) const;

  AttentionValues whole_;
};

}  // namespace suite

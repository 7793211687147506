#pragma once
// Attention whose sequence is split over ranks as a unit: forward and backward, judged by every
// oracle. This is the common part of ring_attention, ulysses_attention
// and fpdt_attention.
//
// numerics: out and the gradients, compared with plain loops in double over whole sequences
// (suite/reference/attention/attention_reference.h). volume: bytes and messages of each pass,
// exactly, and those that FPDT copies between device and host
// (layers/context_parallel/context_cost.h). memory: peaks of activations and buffers, on the device
// and of FPDT on the host, exactly. determinism: a second run.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "collectives/communicator/calls.h"
#include "collectives/communicator/communicator.h"
#include "layers/context_parallel/context_attention.h"
#include "layers/context_parallel/context_cost.h"
#include "layers/context_parallel/core_attention.h"
#include "machine/link/connect.h"
#include "suite/reference/attention/attention_reference.h"
#include "suite/reference/unit.h"

namespace suite {

struct ContextParallelCase {
  int ranks = 1;
  Transport transport{};
  Dtype dtype{};
  std::string cp_comm_type = "p2p";  // of ring_attention: Megatron's name of the algorithm
  int cp_a2a_size = 2;               // of a2a+p2p
  int chunk_size = 0;                // of fpdt_attention: positions of a chunk; 0: without FPDT
  bool offloading = false;           // and chunks are kept in host memory
  std::string placement = "zigzag";
  bool causal = true;
  // Megatron's arguments. kv-channels: columns of a head.
  int micro_batch_size = 1, seq_length = 1, num_attention_heads = 1, num_query_groups = 1,
      kv_channels = 1;
};

// Returns the axes that all units have, without slices. The last placement is the usual one.
Sweep<ContextParallelCase> context_parallel_axes(const std::vector<std::string>& placements = {
                                                     "contiguous", "striped", "zigzag"});
// Returns the values of a slice that the figure `contexts` draws: two lengths, so that memory shows
// its slope.
std::vector<harness::Variation> lengths_over_ranks(std::vector<harness::Variation> more = {});
// Returns why the sizes of a case are not valid, or empty. Throws UsageError for a size below 1.
std::string why_no_sizes(const ContextParallelCase& c);

// Returns the rank that holds a position.
int owner_of(const ContextParallelCase& c, std::int64_t position);

class ContextParallelShell {
 public:
  using Case = ContextParallelCase;
  static constexpr Oracle oracles[] = {Oracle::numerics, Oracle::volume, Oracle::memory,
                                       Oracle::determinism};
  ContextParallelShell(const Case& c, Context& context, layers::CpCommType comm_type);
  ~ContextParallelShell() = default;
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

 private:
  void forward();
  void backward();
  layers::ContextParallel groups();

  Case case_;
  Context& context_;
  harness::PeakMeter memory_;
  collectives::Communicator cp_;
  std::unique_ptr<collectives::Communicator> a2a_, p2p_;  // of a2a+p2p
  std::unique_ptr<machine::Device> host_;                 // of FPDT with offloading
  std::unique_ptr<layers::ChunkOffload> chunks_;          // of FPDT
  layers::ContextOptions options_;
  layers::CoreAttention attention_;  // its sizes
  layers::ContextAttention over_cp_;
  layers::ContextAttention::Saved saved_;
  layers::ContextCost expected_;
  Tensor q_, k_, v_, out_, d_out_;
  layers::AttentionGradients gradients_;

  std::vector<double> draw(std::uint64_t which, std::int64_t width) const;
  std::vector<double> own_rows(const std::vector<double>& whole) const;
  std::size_t passed_bytes() const;
  collectives::CallsCost calls_of(const layers::ContextPass& pass) const;
  // Returns the expected bytes and messages of a pass.
  layers::ContextMessages traffic_of(const layers::ContextPass& pass) const;
  void judge_volume(Judge& judge, const layers::ContextPass& pass);
  void judge_memory(Judge& judge);
  std::vector<machine::Link*> links();
  std::int64_t tokens() const { return attention_.sequences * attention_.placement.sequence; }
  void judge_numerics(Judge& judge) const;

  AttentionValues whole_;
};

}  // namespace suite

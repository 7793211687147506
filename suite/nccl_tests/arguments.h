#pragma once
// `shardmark collective OPERATION FLAGS`: the flags of nccl-tests 2.19.6 (NVIDIA/nccl-tests,
// src/common.cu) with their meaning, defaults and long names as plain values, and ours: --ranks,
// --device, --algorithm, --transport, --traffic.
//
// nccl-tests ignores an unknown flag, datatype or operation, and a file type that it does not
// write. Here each is a harness::UsageError that names the nearest valid word. Flags that only tune
// CUDA streams and NCCL kernels are accepted with a note. Flags that request another measurement
// (-D, -M, -u) are rejected unless off. Sizes are binary: "8", "4K", "1.5M", "8G".

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/traffic_matrix.h"
#include "machine/device/dtype.h"
#include "machine/device/kernels.h"
#include "machine/link/link.h"

namespace suite::nccl_tests {

// The time reported for all ranks (-a).
enum class OverRanks : unsigned char { rank_0, average, minimum, maximum };
// -z. Host collectives end before they return, so 2 is 0. With 1 a timed barrier follows every
// operation. With 3 an untimed barrier follows every iteration.
enum class Blocking : unsigned char { no, barrier_timed, wait, barrier_untimed };

// Exit code: values were wrong, or the bandwidth below $NCCL_TESTS_MIN_BW.
inline constexpr int wrong_values = 7;

struct Arguments {
  machine::Operation operation = machine::Operation::none;
  std::vector<machine::Dtype> dtypes;          // -d all: every dtype
  std::vector<machine::Reduction> reductions;  // -o all: every reduction
  std::optional<int> root = 0;                 // empty: every root (-r all)

  std::int64_t min_bytes = 32 << 20, max_bytes = 32 << 20;
  std::int64_t step_bytes = 1 << 20;
  std::int64_t step_factor = 1;  // above 1: instead of step_bytes
  int iterations = 20, aggregated = 1, warm_up = 1;
  int cycles = 1;                    // 0: until a signal
  int checks = 1;                    // 0: no value is checked
  machine::Registered registered{};  // -R: the memory of the buffers
  int graph_launches = 0;            // -G: of a graph that holds all iterations; 0: no graph
  OverRanks over_ranks = OverRanks::average;
  Blocking blocking = Blocking::no;
  bool per_iteration = false;  // -I
  int skipped = 0;             // -K: first iterations that the summary of -I leaves out
  bool cpu_time = false, timestamps = false;
  int threads = 1, gpus = 1;  // -t, -g
  int parallel_init = 0;      // reported only

  std::optional<int> ranks;                                    // --ranks
  std::string algorithm;                                       // empty: chosen by size
  machine::Device::Kind device = machine::Device::Kind::host;  // of the buffers: --device
  std::optional<machine::Transport> transport;  // empty: chosen by the device and the ranks' hosts
  std::optional<std::string> traffic;           // --traffic, of all_to_all_v: traffic.h
  double timeout_s = 60;
  std::string json_path;
  std::vector<std::string> notes;  // on flags without effect here

  int wanted_ranks() const { return ranks.value_or(threads * gpus); }
  std::string traffic_or_default() const { return traffic.value_or("skewed"); }
};

// `words`: the words after `collective`. Returns no value after printing the help. traffic_file:
// the traffic of an all_to_all_v without --traffic; null: no file.
std::optional<Arguments> parse_arguments(const std::vector<std::string>& words,
                                         const char* traffic_file = nullptr);

// Returns the name of nccl-tests' program: "all_reduce_perf", "alltoall_perf".
std::string program_of(machine::Operation operation);

// Returns the sizes from -b to -e.
std::vector<std::int64_t> sizes(const Arguments& arguments);

// Returns the traffic of an all_to_all_v; null for other operations. Each rank sends about `size`
// bytes, in parts rounded down to 16 bytes as in nccl-tests. A file specifies its own bytes.
std::shared_ptr<const collectives::TrafficMatrix> traffic(const Arguments& arguments,
                                                          std::int64_t size, machine::Dtype dtype,
                                                          int ranks);

// The columns "count" and "size" of nccl-tests. count: elements, of one rank's share if the
// operation deals in shares. Shares are rounded down to 16 bytes, so small sizes may have no
// elements. bytes: the larger of sent and received bytes, of the busiest rank.
struct Extent {
  std::int64_t count = 0, bytes = 0;
};
Extent extent(machine::Operation operation, std::int64_t size, machine::Dtype dtype, int ranks,
              const collectives::TrafficMatrix* traffic = nullptr);

}  // namespace suite::nccl_tests

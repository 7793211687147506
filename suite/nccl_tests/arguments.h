#pragma once
// `shardmark collective OPERATION FLAGS`: the flags of nccl-tests 2.19.6 (NVIDIA/nccl-tests,
// src/common.cu, whose meaning, defaults and long names they keep) as plain values, and ours:
// --ranks, --algorithm, --transport, --traffic.
//
// Where nccl-tests goes on with something else (an unknown flag, datatype or operation, a file type
// that it does not write), this is a harness::UsageError that names the nearest right word. Flags
// that tune CUDA streams and NCCL kernels have nothing to tune here: those that only do so are
// taken with a note, those that ask for another measurement (-G, -D, -M, -u) are refused unless
// off. Sizes are binary: "8", "4K", "1.5M", "8G".

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

// Which time stands for all ranks' (-a).
enum class OverRanks : unsigned char { rank_0, average, minimum, maximum };
// -z. Host collectives end before they return: 2 is 0. With 1 a barrier follows every operation and
// is timed; with 3 it follows every iteration and is not.
enum class Blocking : unsigned char { no, barrier_timed, wait, barrier_untimed };

// Exit code: values were wrong, or the bandwidth below $NCCL_TESTS_MIN_BW.
inline constexpr int wrong_values = 7;

struct Arguments {
  machine::Operation operation = machine::Operation::none;
  std::vector<machine::Dtype> dtypes;          // -d all: every one
  std::vector<machine::Reduction> reductions;  // -o all: every one
  std::optional<int> root = 0;                 // empty: every one (-r all)

  std::int64_t min_bytes = 32 << 20, max_bytes = 32 << 20;
  std::int64_t step_bytes = 1 << 20;
  std::int64_t step_factor = 1;  // above 1: instead of step_bytes
  int iterations = 20, aggregated = 1, warm_up = 1;
  int cycles = 1;  // 0: until a signal
  int checks = 1;  // 0: no value is checked
  OverRanks over_ranks = OverRanks::average;
  Blocking blocking = Blocking::no;
  bool per_iteration = false;  // -I
  int skipped = 0;             // -K: first iterations that the summary of -I leaves out
  bool cpu_time = false, timestamps = false;
  int threads = 1, gpus = 1;  // -t, -g
  int parallel_init = 0;      // reported only

  std::optional<int> ranks;                     // --ranks
  std::string algorithm;                        // empty: chosen by size
  std::optional<machine::Transport> transport;  // empty: chosen by where the ranks are
  std::optional<std::string> traffic;           // --traffic, of all_to_all_v: traffic.h
  double timeout_s = 60;
  std::string json_path;
  std::vector<std::string> notes;  // what a flag asked for that means nothing here

  int wanted_ranks() const { return ranks.value_or(threads * gpus); }
  std::string traffic_or_default() const { return traffic.value_or("skewed"); }
};

// `words`: those after `collective`. Returns nothing if they ask for the help: it has been printed.
// traffic_file: of an all_to_all_v without --traffic; null: none.
std::optional<Arguments> parse_arguments(const std::vector<std::string>& words,
                                         const char* traffic_file = nullptr);

// As nccl-tests' own program is called: "all_reduce_perf", "alltoall_perf".
std::string program_of(machine::Operation operation);

// -b, …, as far as -e.
std::vector<std::int64_t> sizes(const Arguments& arguments);

// Of an all_to_all_v, null of the others: each rank sends about `size` bytes, parts rounded down to
// 16 bytes as nccl-tests does; a file says itself how many.
std::shared_ptr<const collectives::TrafficMatrix> traffic(const Arguments& arguments,
                                                          std::int64_t size, machine::Dtype dtype,
                                                          int ranks);

// What nccl-tests makes of a size: elements in the column "count" (of one rank's share, where an
// operation deals in shares; those are rounded down to 16 bytes, so small sizes may hold none) and
// the bytes in the column "size" (the larger of what is sent and received; by the busiest rank).
struct Extent {
  std::int64_t count = 0, bytes = 0;
};
Extent extent(machine::Operation operation, std::int64_t size, machine::Dtype dtype, int ranks,
              const collectives::TrafficMatrix* traffic = nullptr);

}  // namespace suite::nccl_tests

#pragma once
// The traffic of an all_to_all_v, by name or from a file.
//
// Generated; the busiest rank moves about `bytes`, its own part with them:
//   uniform   the same from every rank to every rank
//   skewed    the more, the farther ahead the receiver is: nccl-tests' own (2.19.6, its spread 1)
//   sparse    from even ranks half to the next rank, half to the one behind it; odd ranks send
//   nothing hot_spot  from every rank eight times as much to rank 0 as to any other
//
// A file holds N lines of N numbers, in bytes: number j of line i is what rank i sends to rank j.
// Blanks part numbers, # begins a comment, empty lines do not count. So nccl-tests 2.19.6 reads
// NCCL_TESTS_ALLTOALLV_MATRIX_FILE (NVIDIA/nccl-tests, src/alltoallv.cu); but there a larger matrix
// than there are ranks is cut, and each part is rounded down to 16 bytes. Here parts are rounded
// down to whole elements.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/traffic_matrix.h"
#include "harness/unit/sweep.h"
#include "machine/device/dtype.h"

namespace suite {

inline constexpr std::string_view generated_traffic[] = {"uniform", "skewed", "sparse", "hot_spot"};
bool is_generated(std::string_view traffic);

// The matrix, in elements, its parts rounded down to so many bytes (a multiple of the dtype's) and
// to whole elements. `bytes` is not read where traffic is a file. Throws harness::UsageError for
// what why_no_traffic names.
std::shared_ptr<const collectives::TrafficMatrix> traffic_matrix(const std::string& traffic,
                                                                 int ranks, std::int64_t bytes,
                                                                 machine::Dtype dtype,
                                                                 std::int64_t granule_bytes = 1);

// A file's numbers, [ranks, ranks]. Throws harness::UsageError: what is wrong, and where.
struct TrafficFile {
  int ranks = 0;
  std::vector<std::int64_t> bytes;
  std::int64_t busiest_bytes() const;
};
TrafficFile read_traffic_file(const std::string& path);

// Why there is no such traffic among so many ranks (no such name or file, a bad file, another
// number of ranks, not the file's bytes where some are asked for), or empty.
std::string why_no_traffic(const std::string& traffic, int ranks,
                           std::optional<std::int64_t> bytes = {});

// A file says how many ranks there are and how many bytes the busiest one moves: where the command
// line does not, these become its axes.
void take_sizes_of_file(harness::AxisFlags& axes);

}  // namespace suite

#pragma once
// The traffic of an all_to_all_v, by name or from a file.
//
// Generated traffic, in which the busiest rank moves about `bytes`, including its own part:
//   uniform   the same from every rank to every rank
//   skewed    grows with the distance to the receiver: nccl-tests' own (2.19.6, its spread 1)
//   sparse    even ranks send half to the next rank, half to the rank after it; odd ranks nothing
//   hot_spot  every rank sends eight times as much to rank 0 as to any other rank
//
// A file holds N lines of N numbers, in bytes: number j of line i is sent by rank i to rank j.
// Blanks separate numbers, # begins a comment, empty lines do not count. nccl-tests 2.19.6 reads
// NCCL_TESTS_ALLTOALLV_MATRIX_FILE in the same way (NVIDIA/nccl-tests, src/alltoallv.cu), but it
// truncates a matrix that is larger than the number of ranks and rounds each part down to 16 bytes.
// Here parts are rounded down to whole elements.

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

// Returns the matrix in elements. Rounds its parts down to multiples of granule_bytes (a multiple
// of the dtype's size) and to whole elements. Ignores `bytes` if traffic is a file. Throws
// harness::UsageError with the text of why_no_traffic.
std::shared_ptr<const collectives::TrafficMatrix> traffic_matrix(const std::string& traffic,
                                                                 int ranks, std::int64_t bytes,
                                                                 machine::Dtype dtype,
                                                                 std::int64_t granule_bytes = 1);

// Reads a file's numbers, in bytes. Throws harness::UsageError with the error and its line.
collectives::TrafficMatrix read_traffic_file(const std::string& path);

// Returns why this traffic is invalid for `ranks` (an unknown name or file, a bad file, another
// number of ranks, other bytes than the file's), or empty.
std::string why_no_traffic(const std::string& traffic, int ranks,
                           std::optional<std::int64_t> bytes = {});

// Takes the ranks, and the bytes of the busiest rank, from a file if the command line does not give
// them.
void take_sizes_of_file(harness::AxisFlags& axes);

}  // namespace suite

#pragma once
// The elements that each rank sends to each other rank in an all_to_all_v: rank i sends part (i, j)
// to rank j. A part may be empty, and (i, i) stays on rank i. These are MPI_Alltoallv's counts of
// all ranks.
//
// A rank's input is its row, in the order of receivers. Its output is its column, in the order of
// senders. Parts are contiguous. An empty part is still a message, of zero bytes, because all ranks
// run the plan of an all_to_all. Parts are not split into pieces.

#include <cstdint>
#include <vector>

namespace collectives {

class TrafficMatrix {
 public:
  // elements: [ranks, ranks], row by row. Throws std::invalid_argument if their number differs or
  // one is negative.
  TrafficMatrix(int ranks, const std::vector<std::int64_t>& elements);

  int ranks() const { return ranks_; }
  std::int64_t operator()(int from, int to) const {
    return input_begin(from, to + 1) - input_begin(from, to);
  }
  // Offset of the part for `to` in the input of `rank`; the end of the last part for `to` =
  // ranks().
  std::int64_t input_begin(int rank, int to) const { return input_begins_[index(rank, to)]; }
  // Offset of the part of `from` in the output of `rank`; the end for `from` = ranks().
  std::int64_t output_begin(int rank, int from) const { return output_begins_[index(rank, from)]; }
  std::int64_t sent_by(int rank) const { return input_begin(rank, ranks_); }
  std::int64_t received_by(int rank) const { return output_begin(rank, ranks_); }
  // Returns the most elements that a rank sends or receives, including its own part: S of
  // nccl-tests' algbw (NVIDIA/nccl-tests, src/alltoallv.cu). It is the `count` of the call.
  std::int64_t busiest() const { return busiest_; }
  std::int64_t total() const;

 private:
  std::size_t index(int rank, int peer) const {
    return static_cast<std::size_t>(rank) * static_cast<std::size_t>(ranks_ + 1) +
           static_cast<std::size_t>(peer);
  }

  int ranks_;
  std::int64_t busiest_ = 0;
  std::vector<std::int64_t> input_begins_, output_begins_;  // [ranks, ranks + 1]
};

}  // namespace collectives

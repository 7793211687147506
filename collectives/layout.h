#pragma once
// The places of a plan's chunks in buffers of a given length.

#include <cstdint>

#include "collectives/plan.h"

namespace collectives {

// Elements of a rank's buffers; 0: no buffer. count: elements of the whole buffer, or of a share
// (deals_in_shares). all_to_all_v uses only call.traffic, which must be set.
struct BufferElements {
  std::int64_t input = 0, output = 0;
};
BufferElements buffer_elements(machine::Operation operation, const Call& call, std::int64_t count);

class Layout {
 public:
  Layout(machine::Operation operation, const Plan& plan, const Call& call, std::int64_t count);

  // Returns the elements of a slice in its own buffer.
  ChunkRange elements(Slice slice) const;
  std::int64_t input_elements() const { return elements_.input; }
  std::int64_t output_elements() const { return elements_.output; }
  std::int64_t scratch_elements() const { return bays_ > 0 ? bays_ * longest_chunk() : 0; }

  // The buffer of a slice, and its elements there. In place, one buffer is input and output
  // (Buffer::input), and the smaller of the two is the own share of the larger.
  struct Site {
    Buffer buffer;
    ChunkRange range;
    bool operator==(const Site&) const = default;
    bool overlaps(const Site& other) const {
      return buffer == other.buffer && range.begin < other.range.end &&
             other.range.begin < range.end;
    }
  };
  Site site(Slice slice, bool in_place) const;

 private:
  // Returns the ranges in a buffer that holds the whole. Input and output differ only for
  // all_to_all_v.
  ChunkRange share_of_whole(Buffer buffer, int share) const;
  ChunkRange chunk_of_whole(Buffer buffer, int index) const;
  std::int64_t longest_chunk() const { return chunk_of_whole(Buffer::input, 0).size(); }

  Extents extents_;
  BufferElements elements_;
  bool equal_shares_;
  int rank_, shares_, pieces_, bays_;
  std::int64_t count_;
  const TrafficMatrix* traffic_;
};

}  // namespace collectives

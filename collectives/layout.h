#pragma once
// Where the chunks of a plan lie in buffers of so many elements.

#include <cstdint>

#include "collectives/plan.h"

namespace collectives {

class Layout {
 public:
  // count: elements of the whole, or of a share where the operation deals in shares.
  Layout(machine::Operation operation, const Plan& plan, const Call& call, std::int64_t count);

  // Elements of the slice's own buffer.
  ChunkRange elements(Slice slice) const;
  std::int64_t input_elements() const { return elements_of(extents_.input); }
  std::int64_t output_elements() const { return elements_of(extents_.output); }
  std::int64_t scratch_elements() const { return bays_ * longest_chunk(); }

  // In place, one buffer is input and output, and the smaller one lies in the larger as its own
  // share: the buffer a slice then lies in (input stands for both), and its elements there.
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
  ChunkRange chunk_of_whole(int index) const;
  std::int64_t longest_chunk() const { return chunk_of_whole(0).size(); }
  std::int64_t elements_of(Extent extent) const;

  Extents extents_;
  bool equal_shares_;
  int rank_, shares_, pieces_, bays_;
  std::int64_t count_;
};

}  // namespace collectives

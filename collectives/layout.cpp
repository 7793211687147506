#include "collectives/layout.h"

namespace collectives {

Layout::Layout(machine::Operation operation, const Plan& plan, const Call& call, std::int64_t count)
    : extents_(extents(operation, call)),
      equal_shares_(deals_in_shares(operation)),
      rank_(call.rank),
      shares_(plan.shares),
      pieces_(plan.pieces),
      bays_(plan.bays),
      count_(count) {}

ChunkRange Layout::chunk_of_whole(int index) const {
  const int share = index / pieces_;
  const ChunkRange whole = equal_shares_ ? ChunkRange{count_ * share, count_ * (share + 1)}
                                         : part_of(count_, shares_, share);
  const ChunkRange piece = part_of(whole.size(), pieces_, index % pieces_);
  return {whole.begin + piece.begin, whole.begin + piece.end};
}

ChunkRange Layout::elements(Slice slice) const {
  const auto run = [&](int first) {
    return ChunkRange{chunk_of_whole(first).begin, chunk_of_whole(first + slice.count - 1).end};
  };
  if (slice.buffer == Buffer::scratch) {
    const std::int64_t begin = slice.first * longest_chunk();
    return {begin, begin + run(slice.like).size()};
  }
  const Extent extent = slice.buffer == Buffer::input ? extents_.input : extents_.output;
  if (extent == Extent::whole) return run(slice.first);
  const ChunkRange whole = run(rank_ * pieces_ + slice.first);  // its own share
  return {whole.begin - count_ * rank_, whole.end - count_ * rank_};
}

std::int64_t Layout::elements_of(Extent extent) const {
  if (extent == Extent::none) return 0;
  return extent == Extent::whole && equal_shares_ ? count_ * shares_ : count_;
}

Layout::Site Layout::site(Slice slice, bool in_place) const {
  ChunkRange range = elements(slice);
  if (!in_place || slice.buffer == Buffer::scratch) return {slice.buffer, range};
  const auto [own, other] = slice.buffer == Buffer::input
                                ? std::pair{extents_.input, extents_.output}
                                : std::pair{extents_.output, extents_.input};
  if (own == Extent::own_share && other == Extent::whole)
    range = {range.begin + count_ * rank_, range.end + count_ * rank_};
  return {Buffer::input, range};
}

}  // namespace collectives

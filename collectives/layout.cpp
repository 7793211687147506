#include "collectives/layout.h"

#include <stdexcept>
#include <utility>

#include "collectives/traffic_matrix.h"

namespace collectives {

BufferElements buffer_elements(machine::Operation operation, const Call& call, std::int64_t count) {
  if (operation == machine::Operation::all_to_all_v) {
    if (!call.traffic) throw std::invalid_argument("all_to_all_v needs a traffic matrix");
    return {call.traffic->sent_by(call.rank), call.traffic->received_by(call.rank)};
  }
  const Extents held = extents(operation, call);
  const auto elements = [&](Extent extent) {
    if (extent == Extent::none) return std::int64_t{0};
    return extent == Extent::whole && deals_in_shares(operation) ? count * call.ranks : count;
  };
  return {elements(held.input), elements(held.output)};
}

Layout::Layout(machine::Operation operation, const Plan& plan, const Call& call, std::int64_t count)
    : extents_(extents(operation, call)),
      elements_(buffer_elements(operation, call, count)),
      equal_shares_(deals_in_shares(operation)),
      rank_(call.rank),
      shares_(plan.shares),
      pieces_(plan.pieces),
      bays_(plan.bays),
      count_(count),
      traffic_(operation == machine::Operation::all_to_all_v ? call.traffic : nullptr) {
  if (traffic_ && bays_ > 0)
    throw std::logic_error(
        "plans of all_to_all_v must not have scratch, because its parts differ in length");
}

ChunkRange Layout::share_of_whole(Buffer buffer, int share) const {
  if (traffic_ && buffer == Buffer::input)
    return {traffic_->input_begin(rank_, share), traffic_->input_begin(rank_, share + 1)};
  if (traffic_)
    return {traffic_->output_begin(rank_, share), traffic_->output_begin(rank_, share + 1)};
  if (equal_shares_) return {count_ * share, count_ * (share + 1)};
  return part_of(count_, shares_, share);
}

ChunkRange Layout::chunk_of_whole(Buffer buffer, int index) const {
  const ChunkRange share = share_of_whole(buffer, index / pieces_);
  const ChunkRange piece = part_of(share.size(), pieces_, index % pieces_);
  return {share.begin + piece.begin, share.begin + piece.end};
}

ChunkRange Layout::elements(Slice slice) const {
  const auto run = [&](int first) {
    return ChunkRange{chunk_of_whole(slice.buffer, first).begin,
                      chunk_of_whole(slice.buffer, first + slice.count - 1).end};
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

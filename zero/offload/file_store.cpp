#include "zero/offload/file_store.h"

#include <algorithm>

#include "collectives/placement.h"
#include "machine/device/arena/free_list.h"

namespace zero {

namespace {

// Aligns each state to a cache line.
std::int64_t stride(std::int64_t elements) { return (elements + 15) / 16 * 16; }

std::size_t bytes_of(const KeptStates& kept, Dtype dtype, std::int64_t elements) {
  return machine::round_up(
      static_cast<std::size_t>(kept.count() * stride(elements)) * machine::size_of(dtype),
      io_alignment);
}

std::int64_t buffer_count(const NvmeOptions& options, const StreamPieces& pieces) {
  return std::min<std::int64_t>(options.buffer_count, pieces.count());
}

std::vector<Range> decayed_runs(const std::vector<std::uint8_t>& mask) {
  std::vector<Range> runs;
  for (std::int64_t i = 0; i < std::ssize(mask); ++i) {
    if (mask[static_cast<std::size_t>(i)] == 0) continue;
    if (runs.empty() || runs.back().end != i) runs.push_back({i, i});
    runs.back().end = i + 1;
  }
  return runs;
}

}  // namespace

StoreCost file_store_cost(const Rule& rule, Dtype value, const StreamPieces& pieces,
                          const NvmeOptions& options) {
  StoreCost cost{.kept = kept_states(rule, value)};
  const Dtype wide = collectives::gradient_dtype(value);
  for (const StreamPiece& piece : pieces.all) cost.pass += bytes_of(cost.kept, wide, piece.size());
  if (cost.pass > 0)
    cost.buffers = static_cast<std::size_t>(buffer_count(options, pieces)) *
                   aligned_bytes(bytes_of(cost.kept, wide, pieces.longest));
  if (cost.kept.mask) cost.buffers += static_cast<std::size_t>(pieces.longest);
  return cost;
}

FileStore::FileStore(const Rule& rule, Dtype value, const StreamPieces& pieces,
                     const std::vector<std::uint8_t>& decay_mask, machine::Device& host,
                     const NvmeOptions& options)
    : pieces_(pieces), kept_(kept_states(rule, value)), decayed_(decayed_runs(decay_mask)) {
  if (kept_.mask && pieces.longest > 0)
    decay_mask_ = host.allocate(static_cast<std::size_t>(pieces.longest), Category::buffers);
  const Dtype wide = collectives::gradient_dtype(value);
  const std::size_t slot = bytes_of(kept_, wide, pieces.longest);
  if (slot == 0) return;
  for (std::int64_t i = 0; i < buffer_count(options, pieces); ++i) {
    buffers_.push_back(aligned_memory(host, wide, slot, Category::buffers));
    host.stream().kernels().fill(buffers_.back(), 0);
  }
  swap_ = std::make_unique<SwapFile>(options.swap, pieces.count(), slot, buffers_);
}

// A piece shares its buffer with the piece that is buffer_count before it. The read starts when the
// write of that piece is complete.
void FileStore::pass(Access access, const Use& use) {
  const std::int64_t count = std::ssize(buffers_);
  const std::int64_t ahead = count > 1 ? std::max<std::int64_t>(count - 2, 1) : 0;
  std::int64_t next = 0;
  for (std::int64_t index = 0; index < pieces_.count(); ++index) {
    for (; swap_ && next <= std::min(index + ahead, pieces_.count() - 1); ++next) {
      if (next >= count) swap_->finish(next - count);
      if (access.reads) swap_->start_read(next, transferred(next));
    }
    if (swap_) swap_->finish(index);
    use(index, views(index));
    if (swap_ && access.writes) swap_->start_write(index, transferred(index));
  }
  for (std::int64_t index = std::max<std::int64_t>(pieces_.count() - count, 0);
       swap_ && index < pieces_.count(); ++index)
    swap_->finish(index);
}

Tensor FileStore::transferred(std::int64_t index) const {
  const Tensor& whole = buffers_[static_cast<std::size_t>(index) % buffers_.size()];
  const std::size_t bytes = bytes_of(kept_, whole.dtype(), pieces_.at(index).size());
  return whole.slice(0, {static_cast<std::int64_t>(bytes / machine::size_of(whole.dtype()))});
}

PieceStates FileStore::views(std::int64_t index) {
  const StreamPiece& piece = pieces_.at(index);
  std::int64_t next = 0;
  const auto view = [&](bool is_kept) {
    if (!is_kept) return Tensor();
    const std::int64_t begin = next;
    next += stride(piece.size());
    return transferred(index).slice(begin, {piece.size()});
  };
  PieceStates states;
  states.master = view(kept_.master);
  states.first_moment = view(kept_.first_moment);
  states.second_moment = view(kept_.second_moment);
  states.decay = set_mask(piece);
  states.decay_mask = static_cast<const std::uint8_t*>(decay_mask_.data());
  return states;
}

Decay FileStore::set_mask(const StreamPiece& piece) {
  if (!kept_.mask) return Decay::everywhere;
  const Range at{piece.in_states, piece.in_states + piece.size()};
  const auto first =
      std::ranges::partition_point(decayed_, [&](const Range& run) { return run.end <= at.begin; });
  std::int64_t covered = 0;
  for (auto run = first; run != decayed_.end() && run->begin < at.end; ++run)
    covered += intersection(*run, at).size();
  if (covered == 0) return Decay::nowhere;
  if (covered == at.size()) return Decay::everywhere;
  auto* const mask = static_cast<std::uint8_t*>(decay_mask_.data());
  std::fill_n(mask, at.size(), std::uint8_t{0});
  for (auto run = first; run != decayed_.end() && run->begin < at.end; ++run) {
    const Range part = intersection(*run, at);
    std::fill_n(mask + part.begin - at.begin, part.size(), std::uint8_t{1});
  }
  return Decay::masked;
}

}  // namespace zero

#include "zero/offload_nvme.h"

#include <algorithm>
#include <stdexcept>

#include "collectives/placement.h"
#include "machine/device/error.h"
#include "machine/device/free_list.h"

namespace zero {

using machine::Category;
using machine::Dtype;
using machine::Tensor;

namespace {

// Each state begins on a line of the cache.
std::int64_t stride(std::int64_t elements) { return (elements + 15) / 16 * 16; }

std::size_t bytes_of(const KeptStates& kept, Dtype dtype, std::int64_t elements) {
  return machine::round_up(
      static_cast<std::size_t>(kept.count() * stride(elements)) * machine::size_of(dtype),
      io_alignment);
}

std::vector<SubGroup> cut(const std::vector<std::int64_t>& sizes, const NvmeOptions& options) {
  const std::int64_t most = std::min(options.sub_group_size, options.buffer_size);
  std::vector<SubGroup> groups;
  for (std::size_t i = 0; i < sizes.size(); ++i)
    for (std::int64_t begin = 0, size = 0; begin < sizes[i]; begin += size) {
      size = std::min(most, sizes[i] - begin);
      groups.push_back({i, {begin, begin + size}});
    }
  return groups;
}

std::int64_t buffer_count(const NvmeOptions& options, std::int64_t groups) {
  return std::min<std::int64_t>(options.buffer_count, groups);
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

void check(const NvmeOptions& options) {
  const auto positive = [](const char* name, std::int64_t value) {
    if (value < 1) throw std::invalid_argument(fmt::format("{} {} is not positive", name, value));
  };
  positive("sub_group_size", options.sub_group_size);
  positive("buffer_count", options.buffer_count);
  positive("buffer_size", options.buffer_size);
  check(options.swap.io);
}

SwapBytes swap_bytes(const Rule& rule, Dtype value, const std::vector<std::int64_t>& sizes,
                     const NvmeOptions& options) {
  const KeptStates kept = kept_states(rule, value);
  SwapBytes bytes;
  std::int64_t longest = 0;
  for (const SubGroup& group : cut(sizes, options)) {
    longest = std::max(longest, group.range.size());
    bytes.of_pass += bytes_of(kept, collectives::gradient_dtype(value), group.range.size());
    ++bytes.groups;
  }
  bytes.slot = bytes_of(kept, collectives::gradient_dtype(value), longest);
  if (bytes.slot > 0)
    bytes.buffers =
        static_cast<std::size_t>(buffer_count(options, bytes.groups)) * aligned_bytes(bytes.slot);
  if (kept.mask) bytes.mask = static_cast<std::size_t>(longest);
  return bytes;
}

NvmeOptimizer::NvmeOptimizer(const Rule& rule, std::vector<OwnedRange> owned, machine::Device& host,
                             const NvmeOptions& options)
    : OwnedOptimizer(rule),
      owned_(std::move(owned)),
      kept_(kept_states(rule, owned_.at(0).dtype())) {
  check(options);
  const Dtype value = owned_.front().dtype(), dtype = collectives::gradient_dtype(value);
  std::vector<std::int64_t> sizes;
  for (OwnedRange& each : owned_) {
    SHARDMARK_CHECK(each.decay_mask.size(), ==, static_cast<std::size_t>(each.size()));
    sizes.push_back(each.size());
    decayed_.push_back(decayed_runs(each.decay_mask));
    each.decay_mask = {};
  }
  groups_ = cut(sizes, options);
  const SwapBytes bytes = swap_bytes(rule, value, sizes, options);
  if (bytes.mask > 0) mask_ = host.allocate(bytes.mask, Category::buffers);
  if (bytes.slot == 0) return;
  for (std::int64_t i = 0; i < buffer_count(options, bytes.groups); ++i) {
    buffers_.push_back(aligned_memory(host, dtype, bytes.slot, Category::buffers));
    host.stream().kernels().fill(buffers_.back(), 0);
  }
  swap_ = std::make_unique<SwapFile>(options.swap, bytes.groups, bytes.slot, buffers_);
  pass({.reads = false}, {.writes = false}, [&](const SubGroup&, const RangeStates& states) {
    machine::Kernels& kernels = states.values.device().stream().kernels();
    if (kept_.master) kernels.cast(states.values, states.master);
    if (kept_.first_moment) kernels.fill(states.first_moment, 0);
    if (kept_.second_moment) kernels.fill(states.second_moment, 0);
  });
}

Tensor NvmeOptimizer::transferred(std::int64_t index) const {
  const Tensor& whole = buffers_[static_cast<std::size_t>(index) % buffers_.size()];
  const std::size_t bytes = bytes_of(kept_, whole.dtype(), group(index).range.size());
  return whole.slice(0, {static_cast<std::int64_t>(bytes / machine::size_of(whole.dtype()))});
}

RangeStates NvmeOptimizer::views(std::int64_t index) const {
  const Range at = group(index).range;
  RangeStates states;
  states.values = values_.slice(at.begin, {at.size()});
  states.master = states.values;
  std::int64_t next = 0;
  const auto view = [&](bool is_kept, Tensor& state) {
    if (!is_kept) return;
    state = transferred(index).slice(next, {at.size()});
    next += stride(at.size());
  };
  view(kept_.master, states.master);
  view(kept_.first_moment, states.first_moment);
  view(kept_.second_moment, states.second_moment);
  return states;
}

// The buffer of a sub-group is that of the one buffer_count before it: it is read into when that
// one's write is done.
void NvmeOptimizer::pass(Ways states, Ways values,
                         const std::function<void(const SubGroup&, const RangeStates&)>& call) {
  if (broken_) throw std::logic_error("the offloaded optimizer is used after an error");
  broken_ = true;
  const std::int64_t groups = std::ssize(groups_), count = std::ssize(buffers_);
  const std::int64_t ahead = count > 1 ? std::max<std::int64_t>(count - 2, 1) : 0;
  std::int64_t next = 0;
  for (std::int64_t index = 0; index < groups; ++index) {
    for (; swap_ && next <= std::min(index + ahead, groups - 1); ++next) {
      if (next >= count) swap_->finish(next - count);
      if (states.reads) swap_->start_read(next, transferred(next));
    }
    if (swap_) swap_->finish(index);
    const SubGroup& at = group(index);
    const OwnedRange& range = owned_[at.owned];
    if (at.range.begin == 0) values_ = range.open(values.reads);
    call(at, views(index));
    if (at.range.end == range.size()) range.close(values.writes);
    if (swap_ && states.writes) swap_->start_write(index, transferred(index));
  }
  for (std::int64_t index = std::max<std::int64_t>(groups - count, 0); swap_ && index < groups;
       ++index)
    swap_->finish(index);
  broken_ = false;
}

void NvmeOptimizer::set_mask(const SubGroup& group) {
  if (!kept_.mask) return;
  const Range at = group.range;
  const std::vector<Range>& decayed = decayed_[group.owned];
  const auto first =
      std::ranges::partition_point(decayed, [&](const Range& run) { return run.end <= at.begin; });
  std::int64_t covered = 0;
  for (auto run = first; run != decayed.end() && run->begin < at.end; ++run)
    covered += intersection(*run, at).size();
  decay_ = covered == 0 ? Decay::nowhere : covered == at.size() ? Decay::everywhere : Decay::masked;
  if (decay_ != Decay::masked) return;
  auto* const mask = static_cast<std::uint8_t*>(mask_.data());
  std::fill_n(mask, at.size(), std::uint8_t{0});
  for (auto run = first; run != decayed.end() && run->begin < at.end; ++run) {
    const Range part = intersection(*run, at);
    std::fill_n(mask + part.begin - at.begin, part.size(), std::uint8_t{1});
  }
}

void NvmeOptimizer::update(const std::vector<Tensor>& gradients, double gradient_scale) {
  SHARDMARK_CHECK(gradients.size(), ==, owned_.size());
  for (std::size_t i = 0; i < owned_.size(); ++i)
    SHARDMARK_CHECK(gradients[i].size(), ==, owned_[i].size());
  const std::int64_t step = steps_ + 1;
  const IoCounts before = counts();
  // Values that are their own master are read, too.
  pass({}, {.reads = !kept_.master}, [&](const SubGroup& group, const RangeStates& states) {
    set_mask(group);
    const Range at = group.range;
    update_range(rule_, step, gradients[group.owned].slice(at.begin, {at.size()}), gradient_scale,
                 decay_, static_cast<const std::uint8_t*>(mask_.data()), states);
  });
  const IoCounts after = counts();
  moved_.nvme_read += after.bytes_read - before.bytes_read;
  moved_.nvme_written += after.bytes_written - before.bytes_written;
  steps_ = step;
}

void NvmeOptimizer::values_changed() {
  if (!kept_.master) return;
  visit(true, [](Range, const RangeStates& states) {
    states.values.device().stream().kernels().cast(states.values, states.master);
  });
}

void NvmeOptimizer::visit(bool writes, const Visit& call) {
  pass({.writes = writes}, {.writes = writes},
       [&](const SubGroup& group, const RangeStates& states) {
         const std::int64_t begin = owned_[group.owned].range.begin;
         call({begin + group.range.begin, begin + group.range.end}, states);
       });
}

}  // namespace zero

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

void check(const NvmeOptions& options) {
  const auto positive = [](const char* name, std::int64_t value) {
    if (value < 1) throw std::invalid_argument(fmt::format("{} {} is not positive", name, value));
  };
  positive("sub_group_size", options.sub_group_size);
  positive("buffer_count", options.buffer_count);
  positive("buffer_size", options.buffer_size);
}

std::int64_t group_size(std::int64_t elements, const NvmeOptions& options) {
  return std::max<std::int64_t>(std::min({options.sub_group_size, options.buffer_size, elements}),
                                1);
}

// Each state begins on a line of the cache.
std::int64_t stride(std::int64_t elements) { return (elements + 15) / 16 * 16; }

std::size_t bytes_of(const KeptStates& kept, Dtype dtype, std::int64_t elements) {
  return machine::round_up(
      static_cast<std::size_t>(kept.count() * stride(elements)) * machine::size_of(dtype),
      io_alignment);
}

}  // namespace

SwapBytes swap_bytes(const Rule& rule, Dtype value, std::int64_t elements,
                     const NvmeOptions& options) {
  const std::int64_t size = group_size(elements, options);
  const std::int64_t groups = (elements + size - 1) / size;
  const KeptStates kept = kept_states(rule, value);
  const std::size_t slot =
      groups == 0 ? 0 : bytes_of(kept, collectives::gradient_dtype(value), size);
  const auto buffers =
      static_cast<std::size_t>(std::min<std::int64_t>(options.buffer_count, groups));
  return {slot, slot == 0 ? 0 : buffers * aligned_bytes(slot),
          kept.mask && groups > 0 ? static_cast<std::size_t>(size) : 0, groups};
}

NvmeOptimizer::NvmeOptimizer(Rule rule, Tensor values, const std::vector<std::uint8_t>& decay_mask,
                             const NvmeOptions& options)
    : rule_(rule), values_(std::move(values)), kept_(kept_states(rule, values_.dtype())) {
  check(options);
  check(options.swap.io);
  SHARDMARK_CHECK(decay_mask.size(), ==, static_cast<std::size_t>(values_.size()));
  machine::Device& device = values_.device();
  group_size_ = group_size(values_.size(), options);
  const SwapBytes bytes = swap_bytes(rule, values_.dtype(), values_.size(), options);
  groups_ = bytes.groups;
  for (std::int64_t i = 0; i < values_.size(); ++i) {
    if (decay_mask[static_cast<std::size_t>(i)] == 0) continue;
    if (decayed_.empty() || decayed_.back().end != i) decayed_.push_back({i, i});
    decayed_.back().end = i + 1;
  }
  if (bytes.mask > 0) mask_ = device.allocate(bytes.mask, Category::buffers);
  if (bytes.slot == 0) return;
  const Dtype dtype = collectives::gradient_dtype(values_.dtype());
  for (std::int64_t i = 0; i < std::min<std::int64_t>(options.buffer_count, groups_); ++i) {
    buffers_.push_back(aligned_memory(device, dtype, bytes.slot, Category::buffers));
    device.stream().kernels().fill(buffers_.back(), 0);
  }
  swap_ = std::make_unique<SwapFile>(options.swap, groups_, bytes.slot, buffers_);
  pass(false, true, [&](Range, const RangeStates& states) {
    machine::Kernels& kernels = device.stream().kernels();
    if (kept_.master) kernels.cast(states.values, states.master);
    if (kept_.first_moment) kernels.fill(states.first_moment, 0);
    if (kept_.second_moment) kernels.fill(states.second_moment, 0);
  });
}

Range NvmeOptimizer::range(std::int64_t group) const {
  return {group * group_size_, std::min((group + 1) * group_size_, values_.size())};
}

Tensor NvmeOptimizer::transferred(std::int64_t group) const {
  const Tensor& whole = buffers_[static_cast<std::size_t>(group) % buffers_.size()];
  const std::size_t bytes = bytes_of(kept_, whole.dtype(), range(group).size());
  return whole.slice(0, {static_cast<std::int64_t>(bytes / machine::size_of(whole.dtype()))});
}

RangeStates NvmeOptimizer::views(std::int64_t group) const {
  const Range at = range(group);
  RangeStates states;
  states.values = values_.slice(at.begin, {at.size()});
  states.master = states.values;
  std::int64_t next = 0;
  const auto view = [&](bool is_kept, Tensor& state) {
    if (!is_kept) return;
    state = transferred(group).slice(next, {at.size()});
    next += stride(at.size());
  };
  view(kept_.master, states.master);
  view(kept_.first_moment, states.first_moment);
  view(kept_.second_moment, states.second_moment);
  return states;
}

// The buffer of a sub-group is that of the one buffer_count before it: it is read into when that
// one's write is done.
void NvmeOptimizer::pass(bool reads, bool writes, const Visit& call) {
  if (broken_) throw std::logic_error("the offloaded optimizer is used after an error");
  broken_ = true;
  const auto count = static_cast<std::int64_t>(buffers_.size());
  const std::int64_t ahead = count > 1 ? std::max<std::int64_t>(count - 2, 1) : 0;
  std::int64_t next = 0;
  for (std::int64_t group = 0; group < groups_; ++group) {
    for (; swap_ && next <= std::min(group + ahead, groups_ - 1); ++next) {
      if (next >= count) swap_->finish(next - count);
      if (reads) swap_->start_read(next, transferred(next));
    }
    if (swap_) swap_->finish(group);
    call(range(group), views(group));
    if (swap_ && writes) swap_->start_write(group, transferred(group));
  }
  for (std::int64_t group = std::max<std::int64_t>(groups_ - count, 0); swap_ && group < groups_;
       ++group)
    swap_->finish(group);
  broken_ = false;
}

void NvmeOptimizer::set_mask(Range at) {
  if (!kept_.mask) return;
  const auto first = std::ranges::partition_point(
      decayed_, [&](const Range& decayed) { return decayed.end <= at.begin; });
  std::int64_t covered = 0;
  for (auto run = first; run != decayed_.end() && run->begin < at.end; ++run)
    covered += intersection(*run, at).size();
  decay_ = covered == 0 ? Decay::nowhere : covered == at.size() ? Decay::everywhere : Decay::masked;
  if (decay_ != Decay::masked) return;
  auto* const mask = static_cast<std::uint8_t*>(mask_.data());
  std::fill_n(mask, at.size(), std::uint8_t{0});
  for (auto run = first; run != decayed_.end() && run->begin < at.end; ++run) {
    const Range part = intersection(*run, at);
    std::fill_n(mask + part.begin - at.begin, part.size(), std::uint8_t{1});
  }
}

void NvmeOptimizer::update(const Tensor& gradient, double gradient_scale) {
  SHARDMARK_CHECK(gradient.size(), ==, values_.size());
  const std::int64_t step = steps_ + 1;
  pass(true, true, [&](Range at, const RangeStates& states) {
    set_mask(at);
    update_range(rule_, step, gradient.slice(at.begin, {at.size()}), gradient_scale, decay_,
                 static_cast<const std::uint8_t*>(mask_.data()), states);
  });
  steps_ = step;
}

void NvmeOptimizer::values_changed() {
  if (!kept_.master) return;
  visit(true, [](Range, const RangeStates& states) {
    states.values.device().stream().kernels().cast(states.values, states.master);
  });
}

void NvmeOptimizer::visit(bool writes, const Visit& call) { pass(true, writes, call); }

}  // namespace zero

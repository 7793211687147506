#include "zero/offload/offload_nvme.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "collectives/placement.h"
#include "machine/base/error.h"
#include "machine/device/arena/free_list.h"

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

struct Cut {
  std::vector<SubGroup> groups;
  std::int64_t longest = 0, staged = 0;  // elements
};

// Sub-groups take turns in two slots of the staging, each as long as its longest one.
Cut cut(const std::vector<std::int64_t>& sizes, const NvmeOptions& options) {
  const std::int64_t most = std::min(options.sub_group_size, options.buffer_size);
  Cut result;
  std::int64_t slot[2] = {};
  for (std::size_t i = 0; i < sizes.size(); ++i)
    for (std::int64_t begin = 0, size = 0; begin < sizes[i]; begin += size) {
      size = std::min(most, sizes[i] - begin);
      std::int64_t& longest = slot[result.groups.size() % 2];
      longest = std::max(longest, size);
      result.groups.push_back({i, {begin, begin + size}});
    }
  for (std::size_t i = 1; i < result.groups.size(); i += 2) result.groups[i].in_staging = slot[0];
  result.longest = std::max(slot[0], slot[1]);
  result.staged = slot[0] + slot[1];
  return result;
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
                     const NvmeOptions& options, const std::vector<bool>& away) {
  const KeptStates kept = kept_states(rule, value);
  const Dtype wide = collectives::gradient_dtype(value);
  const Cut parts = cut(sizes, options);
  SwapBytes bytes;
  bytes.groups = std::ssize(parts.groups);
  std::int64_t stay = 0;  // elements whose values are on the device
  for (const SubGroup& group : parts.groups) {
    const std::int64_t size = group.range.size();
    bytes.of_pass += bytes_of(kept, wide, size);
    bytes.down += static_cast<std::size_t>(size) * size_of(wide);
    if (group.owned >= away.size() || !away[group.owned]) stay += size;
  }
  bytes.up = static_cast<std::size_t>(stay) * size_of(value);
  if (!kept.master) bytes.down += bytes.up;
  bytes.staging =
      static_cast<std::size_t>(parts.staged) * (size_of(wide) + (stay > 0 ? size_of(value) : 0));
  bytes.slot = bytes_of(kept, wide, parts.longest);
  if (bytes.slot > 0)
    bytes.buffers =
        static_cast<std::size_t>(buffer_count(options, bytes.groups)) * aligned_bytes(bytes.slot);
  if (kept.mask) bytes.mask = static_cast<std::size_t>(parts.longest);
  return bytes;
}

NvmeOptimizer::NvmeOptimizer(const Rule& rule, std::vector<OwnedRange> owned, machine::Device& host,
                             const NvmeOptions& options)
    : OwnedOptimizer(rule),
      owned_(std::move(owned)),
      host_(host),
      before_(options.before),
      kept_(kept_states(rule, owned_.at(0).dtype())) {
  SHARDMARK_CHECK(host_.readable_by_host(), ==, true);
  check(options);
  const Dtype value = owned_.front().dtype(), dtype = collectives::gradient_dtype(value);
  std::vector<std::int64_t> sizes;
  std::vector<bool> away;
  for (OwnedRange& each : owned_) {
    SHARDMARK_CHECK(each.decay_mask.size(), ==, static_cast<std::size_t>(each.size()));
    sizes.push_back(each.size());
    away.push_back(each.home != nullptr);
    decayed_.push_back(decayed_runs(each.decay_mask));
    each.decay_mask = {};
  }
  Cut parts = cut(sizes, options);
  groups_ = std::move(parts.groups);
  const SwapBytes bytes = swap_bytes(rule, value, sizes, options, away);
  if (bytes.mask > 0) mask_ = host_.allocate(bytes.mask, Category::buffers);
  staged_gradients_ = Tensor(host_, dtype, {parts.staged}, Category::buffers);
  if (bytes.up > 0) staged_values_ = Tensor(host_, value, {parts.staged}, Category::buffers);
  copy_stream_ = device().make_stream();
  if (bytes.slot == 0) return;
  for (std::int64_t i = 0; i < buffer_count(options, bytes.groups); ++i) {
    buffers_.push_back(aligned_memory(host_, dtype, bytes.slot, Category::buffers));
    host_.stream().kernels().fill(buffers_.back(), 0);
  }
  swap_ = std::make_unique<SwapFile>(options.swap, bytes.groups, bytes.slot, buffers_);
  guarded([&] {
    pass({.reads = false}, {.writes = false}, [&](std::int64_t index, const RangeStates& states) {
      machine::Kernels& kernels = host_.stream().kernels();
      if (kept_.master) kernels.cast(fetched(index, states.values), states.master);
      if (kept_.first_moment) kernels.fill(states.first_moment, 0);
      if (kept_.second_moment) kernels.fill(states.second_moment, 0);
    });
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

Tensor NvmeOptimizer::staged(const Tensor& staging, std::int64_t index) const {
  return staging.slice(group(index).in_staging, {group(index).range.size()});
}

// The thread ends before the caller knows of an error: it uses what is the caller's.
void NvmeOptimizer::guarded(const std::function<void()>& work) {
  if (broken_) throw std::logic_error("the offloaded optimizer is used after an error");
  broken_ = true;
  try {
    work();
  } catch (...) {
    copies_.stop();
    throw;
  }
  broken_ = false;
}

// The buffer of a sub-group is that of the one buffer_count before it: it is read into when that
// one's write is done.
void NvmeOptimizer::pass(Ways states, Ways values,
                         const std::function<void(std::int64_t index, const RangeStates&)>& call) {
  const std::int64_t count = std::ssize(buffers_);
  const std::int64_t ahead = count > 1 ? std::max<std::int64_t>(count - 2, 1) : 0;
  std::int64_t next = 0;
  for (std::int64_t index = 0; index < groups(); ++index) {
    for (; swap_ && next <= std::min(index + ahead, groups() - 1); ++next) {
      if (next >= count) swap_->finish(next - count);
      if (states.reads) swap_->start_read(next, transferred(next));
    }
    if (swap_) swap_->finish(index);
    const SubGroup& at = group(index);
    const OwnedRange& range = owned_[at.owned];
    if (at.range.begin == 0) values_ = range.open(values.reads);
    call(index, views(index));
    if (at.range.end == range.size()) range.close(values.writes);
    if (swap_ && states.writes) swap_->start_write(index, transferred(index));
  }
  for (std::int64_t index = std::max<std::int64_t>(groups() - count, 0); swap_ && index < groups();
       ++index)
    swap_->finish(index);
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

// ---- to the host and back

Tensor NvmeOptimizer::fetched(std::int64_t index, const Tensor& values) {
  if (at_home(index)) return values;
  const Tensor to = staged(staged_values_, index);
  machine::Stream& stream = device().stream();
  stream.copy(to.data(), values.data(), to.bytes());
  stream.synchronize();
  return to;
}

Worker::Ticket NvmeOptimizer::go_down(const std::vector<Tensor>& gradients, std::int64_t index) {
  const SubGroup& at = group(index);
  const auto part = [&](const Tensor& whole) {
    return whole.slice(at.range.begin, {at.range.size()}).data();
  };
  const void* const gradient = part(gradients[at.owned]);
  const void* const values =
      kept_.master || at_home(index) ? nullptr : part(owned_[at.owned].values);
  return copies_.submit([this, index, gradient, values] {
    const machine::During copying(machine::Part::offload);
    before(OffloadPhase::down, index);
    const auto copy = [&](const Tensor& to, const void* from) {
      copy_stream_->copy(to.data(), from, to.bytes());
      moved_.down += to.bytes();
    };
    copy(staged(staged_gradients_, index), gradient);
    if (values) copy(staged(staged_values_, index), values);
    copy_stream_->synchronize();
  });
}

void NvmeOptimizer::go_up(std::int64_t index) {
  const SubGroup& at = group(index);
  const Tensor to = owned_[at.owned].values.slice(at.range.begin, {at.range.size()});
  copies_.submit([this, index, to = to.data(), bytes = to.bytes()] {
    const machine::During copying(machine::Part::offload);
    before(OffloadPhase::up, index);
    copy_stream_->copy(to, staged(staged_values_, index).data(), bytes);
    copy_stream_->synchronize();
    moved_.up += bytes;
  });
}

void NvmeOptimizer::update_group(std::int64_t step, double scale, std::int64_t index,
                                 RangeStates states) {
  set_mask(group(index));
  if (!at_home(index)) {
    states.values = staged(staged_values_, index);
    if (!kept_.master) states.master = states.values;
  }
  before(OffloadPhase::update, index);
  update_range(rule_, step, staged(staged_gradients_, index), scale, decay_,
               static_cast<const std::uint8_t*>(mask_.data()), states);
}

// The copies are made in the order in which they are asked for, so what comes down into a slot
// comes after the values that were updated there went up.
void NvmeOptimizer::update(const std::vector<Tensor>& gradients, double gradient_scale) {
  SHARDMARK_CHECK(gradients.size(), ==, owned_.size());
  for (std::size_t i = 0; i < owned_.size(); ++i) {
    SHARDMARK_CHECK(gradients[i].size(), ==, owned_[i].size());
    SHARDMARK_CHECK(machine::name(gradients[i].dtype()), ==,
                    machine::name(staged_gradients_.dtype()));
  }
  const std::int64_t step = steps_ + 1;
  const IoCounts start = counts();
  guarded([&] {
    // What is queued on the device may still write the gradients and read the values.
    copy_stream_->wait(*device().stream().record());
    Worker::Ticket coming = groups() > 0 ? go_down(gradients, 0) : 0;
    // Values that are their own master are read, too.
    pass({}, {.reads = !kept_.master}, [&](std::int64_t index, const RangeStates& states) {
      const auto next = index + 1 < groups() ? go_down(gradients, index + 1) : 0;
      copies_.wait(std::exchange(coming, next));
      update_group(step, gradient_scale, index, states);
      if (!at_home(index)) go_up(index);
    });
    copies_.wait_all();
  });
  const IoCounts end = counts();
  moved_.nvme_read += end.bytes_read - start.bytes_read;
  moved_.nvme_written += end.bytes_written - start.bytes_written;
  steps_ = step;
}

void NvmeOptimizer::values_changed() {
  if (!kept_.master) return;
  guarded([&] {
    pass({}, {.writes = false}, [&](std::int64_t index, const RangeStates& states) {
      host_.stream().kernels().cast(fetched(index, states.values), states.master);
    });
  });
}

void NvmeOptimizer::visit(bool writes, const Visit& call) {
  guarded([&] {
    pass({.writes = writes}, {.writes = writes},
         [&](std::int64_t index, const RangeStates& states) {
           const SubGroup& at = group(index);
           const std::int64_t begin = owned_[at.owned].range.begin;
           call({begin + at.range.begin, begin + at.range.end}, states);
         });
  });
}

}  // namespace zero

#include "zero/offload/offload_param.h"

#include <algorithm>
#include <utility>

#include "machine/base/error.h"
#include "machine/base/reject.h"
#include "machine/device/arena/free_list.h"
#include "machine/device/kernels.h"

namespace zero {

void check(const ValueOptions& options, int stage, const StateOptions& states) {
  machine::check_positive("offload_param: buffer_count", options.buffer_count);
  machine::check_positive("offload_param: buffer_size", options.buffer_size);
  if (options.max_in_cpu < 0)
    machine::reject("offload_param.max_in_cpu is {}; expected 0 or more", options.max_in_cpu);
  check(options.swap.io);
  if (!options.offloads()) return;
  const auto refuse = [&](std::string_view what, std::string_view why) {
    machine::reject("offload_param {} with {}: {}", name(options.device), what, why);
  };
  if (stage != 3) refuse(fmt::format("stage {}", stage), "only stage 3 shards the values");
  if (states.device != OffloadDevice::none && states.pin_memory != options.pin_memory)
    refuse(
        fmt::format("pin_memory {}", options.pin_memory),
        fmt::format("offload_optimizer has {}, and both use one host memory", states.pin_memory));
  if (states.cpu.delayed_update)
    refuse("delayed_update",
           "it would update values while they are read; leave out one of the two");
  if (states.device == OffloadDevice::cpu && states.cpu.ratio != 1)
    refuse(fmt::format("ratio {}", states.cpu.ratio),
           "states would stay on a device without values; use ratio 1");
}

std::vector<ValueSlot> value_slots(const Layout& layout, const ValueOptions& options) {
  std::vector<ValueSlot> slots;
  if (!options.offloads()) return slots;
  std::int64_t seen = 0;
  for (std::size_t i = 0; i < layout.buckets.size(); ++i) {
    const Bucket& bucket = layout.buckets[i];
    const std::int64_t shard = layout.shard_elements(bucket);
    if (bucket.persistent || shard == 0) continue;
    ValueSlot slot{static_cast<int>(i), {0, shard}, seen, !bucket.frozen};
    seen += shard;
    if (options.device == OffloadDevice::cpu || seen <= options.max_in_cpu) {
      slots.push_back(slot);
      continue;
    }
    slot.in_host = {};
    for (std::int64_t begin = 0; begin < shard; begin = slot.in_shard.end) {
      slot.in_shard = {begin, std::min(begin + options.buffer_size, shard)};
      slots.push_back(slot);
    }
  }
  return slots;
}

std::vector<OwnedPart> owned_parts(const Layout& layout, int dp_rank,
                                   const std::vector<ValueSlot>& slots) {
  std::vector<OwnedPart> parts;
  for (std::size_t i = 0; i < layout.buckets.size(); ++i) {
    if (layout.buckets[i].frozen) continue;
    const Range shard = layout.shard(layout.buckets[i], dp_rank);
    if (layout.buckets[i].persistent) parts.push_back({shard, i, {}});
    for (std::size_t slot = 0; slot < slots.size(); ++slot) {
      const Range at = slots[slot].in_shard;
      if (slots[slot].bucket == static_cast<int>(i))
        parts.push_back({{shard.begin + at.begin, shard.begin + at.end}, i, slot});
    }
  }
  if (parts.empty()) parts.push_back({{0, 0}, 0, {}});
  return parts;
}

std::size_t file_bytes(const ValueSlot& slot, Dtype value) {
  return machine::round_up(static_cast<std::size_t>(slot.in_shard.size()) * machine::size_of(value),
                           io_alignment);
}

ValueBytes value_bytes(const std::vector<ValueSlot>& slots, Dtype value,
                       const ValueOptions& options) {
  ValueBytes bytes;
  std::size_t in_file = 0;
  for (const ValueSlot& slot : slots) {
    if (slot.in_host) {
      bytes.host += static_cast<std::size_t>(slot.in_shard.size()) * machine::size_of(value);
      continue;
    }
    bytes.slot = std::max(bytes.slot, file_bytes(slot, value));
    ++in_file;
  }
  bytes.buffers =
      std::min(static_cast<std::size_t>(options.buffer_count), in_file) * aligned_bytes(bytes.slot);
  return bytes;
}

// ---- OffloadedValues

OffloadedValues::OffloadedValues(const Layout& layout, const ValueOptions& options, Dtype dtype,
                                 machine::Device& device, machine::Device& host)
    : device_(device), dtype_(dtype), slots_(value_slots(layout, options)) {
  const ValueBytes bytes = value_bytes(slots_, dtype, options);
  host_ = Tensor(host, dtype, {static_cast<std::int64_t>(bytes.host / machine::size_of(dtype))},
                 Category::parameters);
  std::int64_t in_file = 0;
  for (const ValueSlot& slot : slots_) in_file_.push_back(slot.in_host ? -1 : in_file++);
  if (in_file == 0) return;
  for (std::int64_t i = 0; i < std::min<std::int64_t>(options.buffer_count, in_file); ++i) {
    buffers_.push_back(aligned_memory(host, dtype, bytes.slot, Category::buffers));
    host.stream().kernels().fill(buffers_.back(), 0);
  }
  in_buffer_.resize(buffers_.size());
  swap_ = std::make_unique<SwapFile>(options.swap, in_file, bytes.slot, buffers_);
}

std::vector<std::size_t> OffloadedValues::slots_of(int bucket) const {
  std::vector<std::size_t> all;
  for (std::size_t i = 0; i < slots_.size(); ++i)
    if (slots_[i].bucket == bucket) all.push_back(i);
  return all;
}

Tensor OffloadedValues::on_host(std::size_t slot) const {
  return host_.slice(*slots_[slot].in_host, {slots_[slot].in_shard.size()});
}
Tensor OffloadedValues::buffered(std::size_t slot, std::size_t buffer) const {
  return buffers_[buffer].slice(0, {slots_[slot].in_shard.size()});
}
Tensor OffloadedValues::transferred(std::size_t slot, std::size_t buffer) const {
  return buffers_[buffer].slice(
      0, {static_cast<std::int64_t>(file_bytes(slots_[slot], dtype_) / machine::size_of(dtype_))});
}

// Completes the write from the buffer.
void OffloadedValues::clear(std::size_t buffer) {
  if (const auto slot = std::exchange(in_buffer_[buffer], std::nullopt))
    swap_->finish(in_file_[*slot]);
}

void OffloadedValues::expect(const std::vector<int>& buckets) {
  if (!swap_) return;
  std::vector<std::size_t> order;
  for (const int bucket : buckets)
    for (const std::size_t slot : slots_of(bucket))
      if (!slots_[slot].in_host) order.push_back(slot);
  expect_slots(std::move(order), buffers_.size());
}

void OffloadedValues::expect_slots(std::vector<std::size_t> order, std::size_t ahead) {
  for (; taken_ < begun_; ++taken_) clear(taken_ % buffers_.size());
  order_ = std::move(order);
  ahead_ = ahead;
  begun_ = taken_ = 0;
  read_ahead();
}

// Stops at a slot whose earlier read is not taken yet. So a slot is read once for every expected
// use.
void OffloadedValues::read_ahead() {
  const auto at = [&](std::size_t position) {
    return order_.begin() + static_cast<std::ptrdiff_t>(position);
  };
  for (; begun_ < order_.size() && begun_ < taken_ + ahead_; ++begun_) {
    const std::size_t slot = order_[begun_], buffer = begun_ % buffers_.size();
    if (std::find(at(taken_), at(begun_), slot) != at(begun_)) return;
    clear(buffer);
    swap_->finish(in_file_[slot]);
    const Tensor into = transferred(slot, buffer);
    swap_->start_read(in_file_[slot], into);
    in_buffer_[buffer] = slot;
    moved_.nvme_read += into.bytes();
  }
}

std::size_t OffloadedValues::arrive(std::size_t slot) {
  if (taken_ == order_.size() || order_[taken_] != slot) expect_slots({slot}, 1);
  read_ahead();
  const std::size_t buffer = taken_ % buffers_.size();
  clear(buffer);
  return buffer;
}

void OffloadedValues::leave() {
  ++taken_;
  read_ahead();
}

std::function<void()> OffloadedValues::bring(int bucket, const Tensor& to) {
  machine::Stream& stream = device_.stream();
  std::vector<std::pair<Tensor, Tensor>> later;
  for (const std::size_t slot : slots_of(bucket)) {
    const Range at = slots_[slot].in_shard;
    const Tensor part = to.slice(at.begin, {at.size()});
    moved_.up += part.bytes();
    if (slots_[slot].in_host) {
      later.emplace_back(part, on_host(slot));
      continue;
    }
    stream.copy(part.data(), buffered(slot, arrive(slot)).data(), part.bytes());
    stream.synchronize();
    leave();
  }
  return [&stream, later] {
    for (const auto& [part, from] : later) stream.copy(part.data(), from.data(), part.bytes());
  };
}

void OffloadedValues::put(int bucket, const Tensor& shard) {
  const OffloadTraffic before = moved_;
  machine::Stream& stream = device_.stream();
  for (const std::size_t slot : slots_of(bucket)) {
    const Range at = slots_[slot].in_shard;
    const Tensor part = shard.slice(at.begin, {at.size()});
    stream.copy(open(slot, false).data(), part.data(), part.bytes());
    stream.synchronize();
    close(slot, true);
  }
  moved_ = before;
}

// An update visits the trained slots in order. It reads ahead into all buffers except one, because
// one buffer is being written.
Tensor OffloadedValues::open(std::size_t slot, bool loaded) {
  if (slots_[slot].in_host) return on_host(slot);
  open_read_ = loaded;
  if (!loaded) {
    expect_slots({}, 0);
    swap_->finish(in_file_[slot]);
    open_buffer_ = next_write_++ % buffers_.size();
    clear(open_buffer_);
    return buffered(slot, open_buffer_);
  }
  if (taken_ == order_.size() || order_[taken_] != slot) {
    std::vector<std::size_t> order;
    for (std::size_t i = slot; i < slots_.size(); ++i)
      if (!slots_[i].in_host && slots_[i].trained) order.push_back(i);
    expect_slots(std::move(order), std::max<std::size_t>(buffers_.size() - 1, 1));
  }
  open_buffer_ = arrive(slot);
  return buffered(slot, open_buffer_);
}

void OffloadedValues::close(std::size_t slot, bool changed) {
  if (slots_[slot].in_host) return;
  if (changed) {
    const Tensor from = transferred(slot, open_buffer_);
    swap_->start_write(in_file_[slot], from);
    in_buffer_[open_buffer_] = slot;
    moved_.nvme_written += from.bytes();
  }
  if (open_read_) leave();
}

}  // namespace zero

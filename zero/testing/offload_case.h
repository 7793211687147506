#pragma once
// Common parts of the tests of streamed optimizers: values, gradients and masks that no piece
// divides evenly, and the comparison with an optimizer in memory.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "machine/device/tensor.h"
#include "zero/offload/streamed_optimizer.h"
#include "zero/testing/far_device.h"

namespace zero::testing {

constexpr machine::Dtype wide(machine::Dtype dtype) {
  return dtype == machine::Dtype::float64 ? machine::Dtype::float64 : machine::Dtype::float32;
}

// The phases that have begun.
class Begun {
 public:
  void add(OffloadPhase phase, std::int64_t piece) {
    const std::lock_guard lock(mutex_);
    begun_.insert({phase, piece});
    changed_.notify_all();
  }
  bool wait(OffloadPhase phase, std::int64_t piece) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(10), [&] {
      return begun_.contains({phase, piece});
    });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<std::pair<OffloadPhase, std::int64_t>> begun_;
};

// Values on the host that belong to another device.
class Home final : public ValueHome {
 public:
  Home(machine::Device& device, std::vector<machine::Tensor> slots)
      : device_(device), slots_(std::move(slots)) {}
  machine::Dtype dtype() const override { return slots_.front().dtype(); }
  machine::Device& device() const override { return device_; }
  machine::Tensor open(std::size_t slot, bool) override { return slots_[slot]; }
  void close(std::size_t, bool) override {}

 private:
  machine::Device& device_;
  std::vector<machine::Tensor> slots_;
};

class OffloadCase : public ::testing::Test {
 protected:
  machine::Tensor waves(machine::Dtype dtype, std::int64_t elements, double pace) const {
    std::vector<double> numbers;
    for (std::int64_t i = 0; i < elements; ++i)
      numbers.push_back(std::sin(pace * static_cast<double>(i + 1)));
    const machine::Tensor made(*device, dtype, {elements}, machine::Category::parameters);
    from_doubles(made, numbers);
    return made;
  }
  static void set(const machine::Tensor& tensor, double value) {  // on any device
    from_doubles(tensor, std::vector<double>(static_cast<std::size_t>(tensor.size()), value));
  }
  static machine::Tensor copied(const machine::Tensor& tensor, machine::Device& to) {
    const machine::Tensor made(to, tensor.dtype(), tensor.shape(), machine::Category::parameters);
    from_doubles(made, to_doubles(tensor));
    return made;
  }
  static std::vector<std::uint8_t> mask(std::int64_t elements) {  // runs of 40 and 60
    std::vector<std::uint8_t> bytes;
    for (std::int64_t i = 0; i < elements; ++i) bytes.push_back(i % 100 < 40 ? 1 : 0);
    return bytes;
  }
  static void expect_same(const machine::Tensor& mine, const machine::Tensor& theirs,
                          const std::string& where) {
    ASSERT_EQ(bool(mine), bool(theirs)) << where;
    if (mine) {
      EXPECT_EQ(hash(mine), hash(theirs)) << where;
    }
  }
  // Compares the states of a range with those of an optimizer in memory.
  static void expect_same(const RangeStates& mine, const RangeStates& theirs,
                          const std::string& where) {
    expect_same(mine.values, theirs.values, where);
    expect_same(mine.master, theirs.master, where);
    expect_same(mine.first_moment, theirs.first_moment, where);
    expect_same(mine.second_moment, theirs.second_moment, where);
  }
  static RangeStates part(const RangeStates& whole, std::int64_t begin, std::int64_t size) {
    const auto of = [&](const machine::Tensor& state) {
      return state ? state.slice(begin, {size}) : state;
    };
    return {of(whole.values), of(whole.master), of(whole.first_moment), of(whole.second_moment)};
  }

  // Returns options for pieces of this many elements, with states in host memory or in a file.
  static StateOptions on_host(std::int64_t piece, double ratio = 1, bool delayed = false) {
    StateOptions made;
    made.device = OffloadDevice::cpu;
    made.cpu = {.piece_size = piece, .ratio = ratio, .delayed_update = delayed};
    return made;
  }
  static StateOptions in_file(std::int64_t piece, int buffers = 3) {
    StateOptions made;
    made.device = OffloadDevice::nvme;
    made.nvme.swap = {.folder = ::testing::TempDir(), .io = {.block_size = 4096, .rank = 1}};
    made.nvme.sub_group_size = piece;
    made.nvme.buffer_count = buffers;
    return made;
  }

  // The device of values and gradients, and of the memory of the optimizer.
  struct Place {
    std::string name;
    machine::Device* values;
    machine::Device* host;
  };
  std::vector<Place> places() {
    return {{"one memory", device.get(), device.get()},
            {"two memories", device.get(), host.get()},
            {"a device that the host cannot read", &far, host.get()}};
  }

  // Ranges of these sizes. Some of them have their values in a home on the host.
  struct Ranges {
    std::vector<std::int64_t> sizes;
    std::vector<bool> away = {};

    std::int64_t elements() const {
      return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
    }
    bool at_home(std::size_t i) const { return i < away.size() && away[i]; }
  };

  // Runs three steps of both optimizers from the same values with the same gradients, which are
  // overwritten after update. Compares the bits of values and of every state, and the moved bytes.
  void expect_same_steps(const Rule& rule, machine::Dtype dtype, const Ranges& ranges,
                         const StateOptions& options, const Place& place,
                         std::optional<machine::Dtype> gradient_dtype = {}) const {
    const std::int64_t elements = ranges.elements();
    const std::string where = fmt::format(
        "{} of {} ranges, {} {} elements, states {}, pieces of {} or {}, ratio {}, {} buffers, {}",
        name(rule), ranges.sizes.size(), elements, machine::name(dtype), name(options.device),
        options.cpu.piece_size, options.nvme.sub_group_size, options.cpu.ratio,
        options.nvme.buffer_count, place.name);
    const machine::Tensor values = waves(dtype, elements, 0.7);
    const std::vector<std::uint8_t> bytes = mask(elements);
    Optimizer in_memory(rule, values, bytes);

    std::vector<machine::Tensor> others;
    std::vector<OwnedRange> owned;
    std::int64_t end = 0;
    for (std::size_t i = 0; i < ranges.sizes.size(); ++i) {
      const std::int64_t begin = std::exchange(end, end + ranges.sizes[i]);
      others.push_back(copied(values.slice(begin, {ranges.sizes[i]}),
                              ranges.at_home(i) ? *place.host : *place.values));
      OwnedRange& each = owned.emplace_back();
      each.range = {begin, end};
      each.decay_mask = {bytes.begin() + begin, bytes.begin() + end};
    }
    Home home(*place.values, others);
    for (std::size_t i = 0; i < owned.size(); ++i) {
      if (ranges.at_home(i)) {
        owned[i].home = &home;
        owned[i].slot = i;
      } else {
        owned[i].values = others[i];
      }
    }
    StreamedOptimizer streamed(rule, owned, *place.host, options, gradient_dtype);
    for (int step = 1; step <= 3; ++step) {
      const machine::Tensor gradient =
          waves(gradient_dtype.value_or(wide(dtype)), elements, 0.3 * step);
      const machine::Tensor widened(*device, wide(dtype), {elements}, machine::Category::gradients);
      device->stream().kernels().cast(gradient, widened);
      std::vector<machine::Tensor> gradients;
      for (const OwnedRange& each : owned)
        gradients.push_back(copied(gradient.slice(each.range.begin, {each.size()}), *place.values));
      if (step == 2) {  // as an external change
        set(values, 0.5);
        for (const machine::Tensor& each : others) set(each, 0.5);
        in_memory.values_changed();
        streamed.values_changed();
      }
      in_memory.update(widened, 0.5);
      streamed.update(gradients, 0.5);
      for (const machine::Tensor& each : gradients) set(each, NAN);
    }
    EXPECT_EQ(streamed.steps(), 3);
    for (std::size_t i = 0; i < owned.size(); ++i)
      EXPECT_EQ(hash(values.slice(owned[i].range.begin, {owned[i].size()})), hash(others[i]))
          << where << ", range " << i;
    std::int64_t seen = 0;
    streamed.visit(false, [&](Range at, const RangeStates& states) {
      EXPECT_EQ(at.begin, seen) << where;
      seen = at.end;
      expect_same(states, part(in_memory.states(), at.begin, at.size()), where);
    });
    EXPECT_EQ(seen, elements) << where;

    // Gradients move down, values up. Values that are their own master move down before, unless
    // host memory has a copy of them.
    std::size_t gradients_down = 0, up = 0;
    for (std::size_t i = 0; i < owned.size(); ++i) {
      const auto size = static_cast<std::size_t>(
          std::llround(options.cpu.ratio * static_cast<double>(ranges.sizes[i])));
      gradients_down += size * size_of(gradient_dtype.value_or(wide(dtype)));
      up += ranges.at_home(i) ? 0 : size * size_of(dtype);
    }
    const bool values_down = options.device == OffloadDevice::nvme && dtype == wide(dtype);
    const OffloadTraffic cost =
        state_cost(rule, dtype, ranges.sizes, options, ranges.away, gradient_dtype).moved;
    EXPECT_EQ(cost.down, gradients_down + (values_down ? up : 0)) << where;
    EXPECT_EQ(cost.up, up) << where;
    EXPECT_EQ(streamed.moved(), cost + cost + cost) << where;
  }

  std::unique_ptr<machine::Device> device = machine::make_host_device();
  std::unique_ptr<machine::Device> host = machine::make_host_device();
  FarDevice far;
};

}  // namespace zero::testing

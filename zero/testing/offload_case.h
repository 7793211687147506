#pragma once
// What tests of offloaded optimizers share: values, gradients and masks that no piece or sub-group
// cuts evenly.

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "machine/device/tensor.h"
#include "zero/offload/owned_optimizer.h"

namespace zero::testing {

constexpr machine::Dtype wide(machine::Dtype dtype) {
  return dtype == machine::Dtype::float64 ? machine::Dtype::float64 : machine::Dtype::float32;
}

// What has begun, by phase and part.
class Begun {
 public:
  void add(OffloadPhase phase, std::int64_t part) {
    const std::lock_guard lock(mutex_);
    begun_.insert({phase, part});
    changed_.notify_all();
  }
  bool wait(OffloadPhase phase, std::int64_t part) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(10), [&] {
      return begun_.contains({phase, part});
    });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<std::pair<OffloadPhase, std::int64_t>> begun_;
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
  void set(const machine::Tensor& tensor, double value) const {
    device->stream().kernels().fill(tensor, value);
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
  // A range's states against those of an optimizer in memory.
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

  std::unique_ptr<machine::Device> device = machine::make_host_device();
};

}  // namespace zero::testing

#include "zero/offload/offload_nvme.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <numeric>
#include <thread>
#include <utility>

#include "machine/base/error.h"
#include "zero/testing/far_device.h"
#include "zero/testing/offload_case.h"

namespace zero {
namespace {

using machine::Category;
using machine::Dtype;
using machine::Tensor;
using testing::wide;

// Values that lie on the host while their device is another.
class Home final : public ValueHome {
 public:
  Home(machine::Device& device, std::vector<Tensor> slots)
      : device_(device), slots_(std::move(slots)) {}
  Dtype dtype() const override { return slots_.front().dtype(); }
  machine::Device& device() const override { return device_; }
  Tensor open(std::size_t slot, bool) override { return slots_[slot]; }
  void close(std::size_t, bool) override {}

 private:
  machine::Device& device_;
  std::vector<Tensor> slots_;
};

class OffloadNvme : public testing::OffloadCase {
 protected:
  void SetUp() override {
    if (const std::string why = IoRing::why_not(); !why.empty()) GTEST_SKIP() << why;
  }

  static NvmeOptions options(std::int64_t sub_group, int buffers) {
    NvmeOptions made;
    made.swap = {.folder = ::testing::TempDir(), .io = {.block_size = 4096, .rank = 1}};
    made.sub_group_size = sub_group;
    made.buffer_count = buffers;
    return made;
  }

  // Where values and gradients are, and whose memory the optimizer takes.
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
  static Tensor copied(const Tensor& tensor, machine::Device& to) {
    const Tensor made(to, tensor.dtype(), tensor.shape(), Category::parameters);
    from_doubles(made, to_doubles(tensor));
    return made;
  }
  static void set(const Tensor& tensor, double value) {
    from_doubles(tensor, std::vector<double>(static_cast<std::size_t>(tensor.size()), value));
  }

  // Both from the same values, by the same gradients, which are gone once update has returned: the
  // bits of values and of every state. away: of the ranges, whose values have a home on the host.
  void expect_same_steps(const Rule& rule, Dtype dtype, const std::vector<std::int64_t>& sizes,
                         const NvmeOptions& given, const Place& place,
                         const std::vector<bool>& away = {}) const {
    const std::int64_t elements = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
    const std::string where =
        fmt::format("{} of {} ranges, {} {} elements, sub-groups of {}, {} buffers, {}", name(rule),
                    sizes.size(), elements, machine::name(dtype), given.sub_group_size,
                    given.buffer_count, place.name);
    const Tensor values = waves(dtype, elements, 0.7);
    const std::vector<std::uint8_t> bytes = mask(elements);
    Optimizer in_memory(rule, values, bytes);

    std::vector<Tensor> others;
    std::vector<OwnedRange> owned;
    std::int64_t end = 0, stay = 0;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const std::int64_t begin = std::exchange(end, end + sizes[i]);
      const bool at_home = i < away.size() && away[i];
      if (!at_home) stay += sizes[i];
      others.push_back(copied(values.slice(begin, {sizes[i]}), at_home ? *host : *place.values));
      OwnedRange& each = owned.emplace_back();
      each.range = {begin, end};
      each.decay_mask = {bytes.begin() + begin, bytes.begin() + end};
    }
    Home home(*place.values, others);
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      if (i < away.size() && away[i]) {
        owned[i].home = &home;
        owned[i].slot = i;
      } else {
        owned[i].values = others[i];
      }
    }
    NvmeOptimizer offloaded(rule, owned, *place.host, given);
    for (int step = 1; step <= 3; ++step) {
      const Tensor gradient = waves(wide(dtype), elements, 0.3 * step);
      std::vector<Tensor> gradients;
      for (const OwnedRange& each : owned)
        gradients.push_back(copied(gradient.slice(each.range.begin, {each.size()}), *place.values));
      if (step == 2) {  // set from outside
        set(values, 0.5);
        for (const Tensor& each : others) set(each, 0.5);
        in_memory.values_changed();
        offloaded.values_changed();
      }
      in_memory.update(gradient, 0.5);
      offloaded.update(gradients, 0.5);
      for (const Tensor& each : gradients) set(each, NAN);
    }
    EXPECT_EQ(offloaded.steps(), 3);
    for (std::size_t i = 0; i < sizes.size(); ++i)
      EXPECT_EQ(hash(values.slice(owned[i].range.begin, {sizes[i]})), hash(others[i]))
          << where << ", range " << i;
    std::int64_t seen = 0;
    offloaded.visit(false, [&](Range at, const RangeStates& states) {
      EXPECT_EQ(at.begin, seen) << where;
      seen = at.end;
      expect_same(states, part(in_memory.states(), at.begin, at.size()), where);
    });
    EXPECT_EQ(seen, elements) << where;

    // Gradients down, values up; those that are their own master come down before.
    const std::size_t value = size_of(dtype), gradient = size_of(wide(dtype));
    const std::size_t up = static_cast<std::size_t>(stay) * value;
    const std::size_t down =
        static_cast<std::size_t>(elements) * gradient + (dtype == wide(dtype) ? up : 0);
    const SwapBytes cost = swap_bytes(rule, dtype, sizes, given, away);
    EXPECT_EQ(offloaded.moved(),
              (OffloadTraffic{3 * down, 3 * up, 3 * cost.of_pass, 3 * cost.of_pass}))
        << where;
    EXPECT_EQ(cost.down, down) << where;
    EXPECT_EQ(cost.up, up) << where;
  }
  void expect_same_steps(const Rule& rule, Dtype dtype, std::int64_t elements,
                         const NvmeOptions& given) {
    for (const Place& place : places()) expect_same_steps(rule, dtype, {elements}, given, place);
  }

  std::unique_ptr<machine::Device> host = machine::make_host_device();
  testing::FarDevice far;
};

TEST_F(OffloadNvme, UpdatesToTheSameBits) {
  for (const std::string& rule : rule_names())
    for (const Dtype dtype : machine::floating_dtypes)
      expect_same_steps(find_rule(rule), dtype, 1000, options(301, 3));  // the last one is of 97
  for (const std::int64_t elements : {0, 1, 300, 301, 302, 602, 603, 1777})
    for (const int buffers : {1, 2, 3, 4, 100})
      expect_same_steps(AdamW{}, Dtype::bfloat16, elements, options(301, buffers));
  for (const std::int64_t elements : {0, 1, 602, 603, 1777})
    expect_same_steps(AdamW{}, Dtype::float32, elements, options(301, 2));
  NvmeOptions cut = options(1'000'000, 4);
  cut.buffer_size = 77;
  expect_same_steps(Adam{}, Dtype::bfloat16, 1000, cut);
}

// No sub-group reaches into two; some ranges have nothing, some have their values at home.
TEST_F(OffloadNvme, UpdatesSeveralRanges) {
  for (const char* const rule : {"sgd", "adamw"})
    for (const Dtype dtype : {Dtype::bfloat16, Dtype::float16, Dtype::float32})
      for (const std::vector<bool>& away :
           {std::vector<bool>{}, {false, true, false, true, true}, {true, true, true, true, true}})
        for (const Place& place : places())
          expect_same_steps(find_rule(rule), dtype, {70, 250, 0, 1, 333}, options(100, 3), place,
                            away);
}

// Whatever order the disk takes, also when writes come last.
TEST_F(OffloadNvme, ABufferIsFreeWhenItsWriteIsDone) {
  for (const int buffers : {1, 2, 3, 5}) {
    NvmeOptions late = options(100, buffers);
    late.swap.io.late_writes = true;
    late.swap.io.most_bytes = 4096;
    expect_same_steps(AdamW{}, Dtype::bfloat16, 1234, late);
  }
}

// Whichever of the three is the slowest.
TEST_F(OffloadNvme, AStagingSlotIsUsedAgainWhenItIsFree) {
  for (const OffloadPhase slow : {OffloadPhase::down, OffloadPhase::update, OffloadPhase::up}) {
    NvmeOptions slowed = options(100, 3);
    slowed.before = [slow](OffloadPhase phase, std::int64_t) {
      if (phase == slow) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    };
    expect_same_steps(AdamW{}, Dtype::bfloat16, 777, slowed);
    expect_same_steps(AdamW{}, Dtype::float32, 777, slowed);
  }
}

// Each phase of a sub-group begins before an earlier one of its neighbour has ended.
TEST_F(OffloadNvme, ASubGroupMovesWhileItsNeighbourIsUpdated) {
  constexpr std::int64_t groups = 5;
  for (const Dtype dtype : {Dtype::bfloat16, Dtype::float32}) {
    testing::Begun begun;
    std::atomic<int> late = 0;
    NvmeOptions watched = options(100, 3);
    watched.before = [&](OffloadPhase phase, std::int64_t group) {
      begun.add(phase, group);
      if (group + 1 == groups) return;
      const bool met = phase == OffloadPhase::update ? begun.wait(OffloadPhase::down, group + 1)
                       : phase == OffloadPhase::up   ? begun.wait(OffloadPhase::update, group + 1)
                                                     : true;
      late += met ? 0 : 1;
    };
    const Tensor values = waves(dtype, 100 * groups, 1);
    NvmeOptimizer optimizer(AdamW{}, values, mask(100 * groups), watched);
    optimizer.update(waves(Dtype::float32, 100 * groups, 2), 1);
    EXPECT_EQ(late, 0);
  }
}

TEST_F(OffloadNvme, HoldsItsBuffersAndMovesEveryStateOnce) {
  constexpr std::int64_t elements = 100'000;
  constexpr std::size_t n = elements;
  const NvmeOptions given = options(10'000, 3);
  struct Row {
    Dtype dtype;
    Rule rule;
    std::size_t slot, staging, mask, down, up;  // the last two of an element
  };
  for (const Row& row : std::vector<Row>{
           {Dtype::bfloat16, AdamW{}, 122'880, 20'000 * (4 + 2), 10'000, 4, 2},  // 3 x 40'000
           {Dtype::float16, Momentum{}, 81'920, 20'000 * (4 + 2), 10'000, 4, 2},
           {Dtype::bfloat16, Sgd{}, 40'960, 20'000 * (4 + 2), 0, 4, 2},
           {Dtype::float32, AdamW{}, 81'920, 20'000 * (4 + 4), 10'000, 8, 4},
           {Dtype::float64, RmsProp{}, 81'920, 20'000 * (8 + 8), 10'000, 16, 8},
           // Has no state, and no file.
           {Dtype::float32, Sgd{}, 0, 20'000 * (4 + 4), 0, 8, 4}}) {
    const std::string where = fmt::format("{} of {}", name(row.rule), machine::name(row.dtype));
    const SwapBytes bytes = swap_bytes(row.rule, row.dtype, elements, given);
    EXPECT_EQ(bytes.groups, 10) << where;
    EXPECT_EQ(bytes.slot, row.slot) << where;
    EXPECT_EQ(bytes.buffers, row.slot == 0 ? 0 : 3 * (row.slot + 4096)) << where;
    EXPECT_EQ(bytes.mask, row.mask) << where;
    EXPECT_EQ(bytes.staging, row.staging) << where;
    EXPECT_EQ(bytes.of_pass, 10 * row.slot) << where;
    EXPECT_EQ(bytes.down, n * row.down) << where;
    EXPECT_EQ(bytes.up, n * row.up) << where;

    const Tensor values = waves(row.dtype, elements, 1);
    const Tensor gradient = waves(wide(row.dtype), elements, 2);
    device->ledger().reset_peaks();
    host->ledger().reset_peaks();
    const std::size_t before = device->ledger().current();
    NvmeOptimizer optimizer(row.rule, one_range(values, mask(elements)), *host, given);
    for (int step = 0; step < 2; ++step) optimizer.update(gradient, 1);
    EXPECT_EQ(host->ledger().peak(), bytes.buffers + row.mask + row.staging) << where;
    EXPECT_EQ(host->ledger().peak(Category::buffers), host->ledger().peak()) << where;
    EXPECT_EQ(device->ledger().peak(), before) << where;
    EXPECT_EQ(optimizer.moved(),
              (OffloadTraffic{2 * n * row.down, 2 * n * row.up, 20 * row.slot, 20 * row.slot}))
        << where;
    EXPECT_EQ(optimizer.counts().bytes_written, 3 * 10 * row.slot) << where;  // to begin with, too
    EXPECT_EQ(optimizer.counts().bytes_read, 2 * 10 * row.slot) << where;
    EXPECT_EQ(optimizer.counts().reads, 2 * 10 * row.slot / 4096) << where;
    EXPECT_EQ(optimizer.swap_file() == nullptr, row.slot == 0) << where;
  }
}

TEST_F(OffloadNvme, AWrongByteIsNeverAnUpdate) {
  const Tensor gradient = waves(Dtype::float32, 5000, 2);
  for (const off_t at : {0, 4097, 12 * 5000 - 1}) {
    const Tensor values = waves(Dtype::bfloat16, 5000, 1);
    NvmeOptimizer optimizer(AdamW{}, values, mask(5000), options(5000, 2));
    optimizer.update(gradient, 1);
    const std::uint64_t before = hash(values);
    const int file = optimizer.swap_file()->descriptor();
    ASSERT_EQ(::fcntl(file, F_SETFL, ::fcntl(file, F_GETFL) & ~O_DIRECT), 0);
    unsigned char byte = 0;
    ASSERT_EQ(::pread(file, &byte, 1, at), 1);
    byte ^= 4;
    ASSERT_EQ(::pwrite(file, &byte, 1, at), 1);
    try {
      optimizer.update(gradient, 1);
      FAIL() << "byte " << at;
    } catch (const machine::MachineError& error) {
      EXPECT_NE(std::string(error.what())
                    .find(fmt::format("{} of rank 1: the block at {} is not what was written there",
                                      ::testing::TempDir(), at / 4096 * 4096)),
                std::string::npos)
          << error.what();
    }
    EXPECT_EQ(hash(values), before);
    EXPECT_EQ(optimizer.steps(), 1);
    EXPECT_THROW(optimizer.update(gradient, 1), std::logic_error);
  }
}

TEST_F(OffloadNvme, AShortFileIsNeverAnUpdate) {
  const Tensor gradient = waves(Dtype::float32, 5000, 2);
  const Tensor values = waves(Dtype::bfloat16, 5000, 1);
  NvmeOptimizer optimizer(AdamW{}, values, mask(5000), options(1000, 2));
  ASSERT_EQ(::ftruncate(optimizer.swap_file()->descriptor(), 3 * 12'288), 0);
  EXPECT_THROW(optimizer.update(gradient, 1), machine::MachineError);
  EXPECT_THROW(NvmeOptimizer(AdamW{}, values, mask(5000), options(0, 2)), std::invalid_argument);
  EXPECT_THROW(NvmeOptimizer(AdamW{}, values, mask(5000), options(1, 0)), std::invalid_argument);
}

TEST_F(OffloadNvme, ErrorsOfTheThreadReachTheCaller) {
  const Tensor gradient = waves(Dtype::float32, 1000, 2);
  for (const OffloadPhase phase : {OffloadPhase::down, OffloadPhase::update, OffloadPhase::up}) {
    const Tensor values = waves(Dtype::bfloat16, 1000, 1);
    NvmeOptions failing = options(100, 3);
    testing::Begun begun;
    std::atomic<int> at_work = 0;
    failing.before = [&](OffloadPhase now, std::int64_t group) {
      begun.add(now, group);
      if (now == phase && group == 3) {
        if (now == OffloadPhase::update) begun.wait(OffloadPhase::down, 4);
        throw machine::MachineError("the bus is gone");
      }
      if (now != OffloadPhase::down || group != 4) return;
      ++at_work;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      --at_work;
    };
    NvmeOptimizer optimizer(AdamW{}, values, mask(1000), failing);
    try {
      optimizer.update(gradient, 1);
      FAIL();
    } catch (const machine::MachineError& error) {
      EXPECT_STREQ(error.what(), "the bus is gone");
      EXPECT_EQ(at_work, 0);  // on what is the caller's
    }
    EXPECT_THROW(optimizer.update(gradient, 1), std::logic_error);
    EXPECT_THROW(optimizer.values_changed(), std::logic_error);
    EXPECT_THROW(optimizer.visit(false, [](Range, const RangeStates&) {}), std::logic_error);
  }
}

}  // namespace
}  // namespace zero

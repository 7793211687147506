#include "zero/offload_nvme.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "machine/device/error.h"
#include "zero/offload_case.h"

namespace zero {
namespace {

using machine::Category;
using machine::Dtype;
using machine::Tensor;
using testing::wide;

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

  // Both from the same values, by the same gradients: the bits of values and of every state.
  void expect_same_steps(const Rule& rule, Dtype dtype, std::int64_t elements,
                         const NvmeOptions& given) const {
    const Tensor values = waves(dtype, elements, 0.7), other = waves(dtype, elements, 0.7);
    Optimizer in_memory(rule, values, mask(elements));
    NvmeOptimizer offloaded(rule, other, mask(elements), given);
    const std::string where =
        fmt::format("{} of {} {}, sub-groups of {}, {} buffers", name(rule), elements,
                    machine::name(dtype), given.sub_group_size, given.buffer_count);
    for (int step = 1; step <= 3; ++step) {
      const Tensor gradient = waves(wide(dtype), elements, 0.3 * step);
      if (step == 2) {  // set from outside
        for (const Tensor& each : {values, other}) set(each, 0.5);
        in_memory.values_changed();
        offloaded.values_changed();
      }
      in_memory.update(gradient, 0.5);
      offloaded.update(gradient, 0.5);
    }
    EXPECT_EQ(offloaded.steps(), 3);
    EXPECT_EQ(hash(values), hash(other)) << where;
    std::int64_t seen = 0;
    offloaded.visit(false, [&](Range at, const RangeStates& states) {
      EXPECT_EQ(at.begin, seen) << where;
      seen = at.end;
      expect_same(states, part(in_memory.states(), at.begin, at.size()), where);
    });
    EXPECT_EQ(seen, elements) << where;
  }
};

TEST_F(OffloadNvme, UpdatesToTheSameBits) {
  for (const std::string& rule : rule_names())
    for (const Dtype dtype : {Dtype::bfloat16, Dtype::float32, Dtype::float64})
      expect_same_steps(find_rule(rule), dtype, 1000, options(301, 3));  // the last one is of 97
  for (const std::int64_t elements : {0, 1, 300, 301, 302, 602, 1777})
    for (const int buffers : {1, 2, 3, 4, 100})
      expect_same_steps(AdamW{}, Dtype::bfloat16, elements, options(301, buffers));
  NvmeOptions cut = options(1'000'000, 4);
  cut.buffer_size = 77;
  expect_same_steps(Adam{}, Dtype::bfloat16, 1000, cut);
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

TEST_F(OffloadNvme, HoldsItsBuffersAndMovesEveryStateOnce) {
  constexpr std::int64_t elements = 100'000;
  const Tensor values = waves(Dtype::bfloat16, elements, 1);
  const Tensor gradient = waves(Dtype::float32, elements, 2);
  const NvmeOptions given = options(10'000, 3);
  const SwapBytes bytes = swap_bytes(AdamW{}, Dtype::bfloat16, elements, given);
  EXPECT_EQ(bytes.groups, 10);
  EXPECT_EQ(bytes.slot, 122'880u);  // three times 40'000, to 4096
  EXPECT_EQ(bytes.buffers, 3 * (122'880u + 4096));
  EXPECT_EQ(bytes.mask, 10'000u);
  device->ledger().reset_peaks();
  NvmeOptimizer optimizer(AdamW{}, values, mask(elements), given);
  optimizer.update(gradient, 1);
  EXPECT_EQ(device->ledger().peak(Category::optimizer), 0u);
  EXPECT_EQ(device->ledger().peak(Category::buffers), bytes.buffers + bytes.mask);
  EXPECT_EQ(optimizer.counts().bytes_written, 2 * 10 * bytes.slot);  // once to begin with
  EXPECT_EQ(optimizer.counts().bytes_read, 10 * bytes.slot);
  EXPECT_EQ(optimizer.counts().reads, 10 * bytes.slot / 4096);

  // Plain SGD of values that are their own master has no state, and no file.
  const Tensor floats = waves(Dtype::float32, elements, 1);
  const NvmeOptimizer none(Sgd{}, floats, mask(elements), given);
  EXPECT_EQ(swap_bytes(Sgd{}, Dtype::float32, elements, given).buffers, 0u);
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

}  // namespace
}  // namespace zero

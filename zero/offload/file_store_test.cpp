#include "zero/offload/file_store.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "machine/base/error.h"
#include "zero/testing/offload_case.h"

namespace zero {
namespace {

using machine::Dtype;
using machine::Tensor;

class FileStoreOf : public testing::OffloadCase {
 protected:
  void SetUp() override {
    if (const std::string why = IoRing::why_not(); !why.empty()) GTEST_SKIP() << why;
  }
  static SwapFile* swap_file(StreamedOptimizer& optimizer) {
    return dynamic_cast<FileStore&>(optimizer.store()).swap_file();
  }
};

TEST_F(FileStoreOf, TakesAnyNumberOfBuffers) {
  for (const std::int64_t elements : {1, 302, 602, 603, 1777})
    for (const int buffers : {1, 2, 3, 4, 100})
      for (const Dtype dtype : {Dtype::bfloat16, Dtype::float32})
        expect_same_steps(AdamW{}, dtype, {{elements}}, in_file(301, buffers), places()[1]);
  StateOptions split = in_file(1'000'000, 4);
  split.nvme.buffer_size = 77;
  expect_same_steps(Adam{}, Dtype::bfloat16, {{1000}}, split, places()[1]);
}

// Holds for any completion order of the disk, also if writes complete last.
TEST_F(FileStoreOf, ABufferIsFreeWhenItsWriteIsDone) {
  for (const int buffers : {1, 2, 3, 5}) {
    StateOptions late = in_file(100, buffers);
    late.nvme.swap.io.late_writes = true;
    late.nvme.swap.io.most_bytes = 4096;
    expect_same_steps(AdamW{}, Dtype::bfloat16, {{1234}}, late, places()[0]);
  }
}

TEST_F(FileStoreOf, HasNoFileWithoutStates) {
  const Tensor values = waves(Dtype::float32, 10, 1);
  StreamedOptimizer sgd(Sgd{}, values, mask(10), *host, in_file(4));
  EXPECT_EQ(swap_file(sgd), nullptr);
  StreamedOptimizer adam(Adam{}, values, mask(10), *host, in_file(4));
  EXPECT_NE(swap_file(adam), nullptr);
}

TEST_F(FileStoreOf, AWrongByteIsNeverAnUpdate) {
  const Tensor gradient = waves(Dtype::float32, 5000, 2);
  for (const off_t at : {0, 4097, 12 * 5000 - 1}) {
    const Tensor values = waves(Dtype::bfloat16, 5000, 1);
    StreamedOptimizer optimizer(AdamW{}, values, mask(5000), *device, in_file(5000, 2));
    optimizer.update(gradient, 1);
    const std::uint64_t before = hash(values);
    const int file = swap_file(optimizer)->descriptor();
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

TEST_F(FileStoreOf, AShortFileIsNeverAnUpdate) {
  const Tensor values = waves(Dtype::bfloat16, 5000, 1);
  StreamedOptimizer optimizer(AdamW{}, values, mask(5000), *device, in_file(1000, 2));
  ASSERT_EQ(::ftruncate(swap_file(optimizer)->descriptor(), 3 * 12'288), 0);
  EXPECT_THROW(optimizer.update(waves(Dtype::float32, 5000, 2), 1), machine::MachineError);
}

}  // namespace
}  // namespace zero

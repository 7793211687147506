#include "zero/offload/io_ring.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <random>

#include "machine/base/checksum.h"
#include "machine/base/error.h"

namespace zero {
namespace {

using machine::Category;
using machine::Dtype;
using machine::Tensor;

class Ring : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = IoRing::why_not(); !why.empty()) GTEST_SKIP() << why;
  }

  Tensor memory(std::size_t bytes, unsigned seed = 0) const {
    const Tensor made = aligned_memory(*device, Dtype::uint8, bytes, Category::buffers);
    std::minstd_rand random(seed);
    for (std::size_t i = 0; i < bytes; ++i)
      made.as<std::uint8_t>()[i] = seed == 0 ? 0 : static_cast<std::uint8_t>(random() >> 8);
    return made;
  }
  static bool equal(const Tensor& a, const Tensor& b) {
    return a.bytes() == b.bytes() && std::memcmp(a.data(), b.data(), a.bytes()) == 0;
  }

  std::unique_ptr<machine::Device> device = machine::make_host_device();
  const std::string folder = ::testing::TempDir();
};

std::string what(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing was thrown";
}
#define EXPECT_SAYS(text, word) EXPECT_NE((text).find(word), std::string::npos) << (text)

TEST_F(Ring, ReadsBackAnyNumberOfBlocks) {
  for (const std::size_t bytes : {4096u, 3u * 4096u, 10u * 4096u}) {
    for (const int depth : {1, 3, 64}) {
      for (const bool single : {false, true}) {
        for (const std::size_t most : {0u, 4096u}) {  // of 8192: two transfers per block
          const Tensor written = memory(bytes, 7), read = memory(bytes), other = memory(bytes, 8);
          const IoFile file = IoFile::unnamed(folder, 3 * bytes, 0);
          IoRing ring({.block_size = 8192,
                       .queue_depth = depth,
                       .single_submit = single,
                       .most_bytes = most});
          if (depth != 3) ring.register_memory({written, read});
          const auto first = ring.write(file, bytes, written);
          const auto second = ring.write(file, 0, other);
          ring.wait(first);
          ring.wait(ring.read(file, bytes, read));
          ring.wait(second);
          EXPECT_TRUE(equal(written, read)) << bytes << " bytes, depth " << depth;
          ring.wait(ring.read(file, 0, read));
          EXPECT_TRUE(equal(other, read));
          const IoCounts counts = ring.counts();
          EXPECT_EQ(counts.reads, 2 * ((bytes + 8191) / 8192));
          EXPECT_EQ(counts.writes, counts.reads);
          EXPECT_EQ(counts.bytes_read, 2 * bytes);
          EXPECT_EQ(counts.bytes_written, 2 * bytes);
          EXPECT_LE(counts.most_under_way, depth);
        }
      }
    }
  }
}

TEST_F(Ring, KeepsTheQueueFull) {
  const Tensor data = memory(64 * 4096);
  const IoFile file = IoFile::unnamed(folder, data.bytes(), 0);
  for (const int depth : {1, 5, 64, 100}) {
    IoRing ring({.block_size = 4096, .queue_depth = depth});
    ring.wait(ring.write(file, 0, data));
    EXPECT_EQ(ring.counts().most_under_way, std::min(depth, 64));
  }
}

TEST_F(Ring, LeavesTheFolderEmpty) {
  const std::string own = folder + "/ring-" + std::to_string(::getpid());
  std::filesystem::create_directory(own);
  {
    const IoFile file = IoFile::unnamed(own, 1 << 20, 0);
    EXPECT_TRUE(std::filesystem::is_empty(own));
    struct stat status {};
    ASSERT_EQ(::fstat(file.descriptor(), &status), 0);
    EXPECT_EQ(status.st_size, 1 << 20);
  }
  EXPECT_TRUE(std::filesystem::is_empty(own));
  std::filesystem::remove(own);
}

TEST_F(Ring, ErrorsNameFileRankAndOffset) {
  const Tensor data = memory(4 * 4096);
  IoRing ring({.block_size = 4096, .rank = 3});

  const IoFile cut = IoFile::unnamed(folder, data.bytes(), 3);
  ASSERT_EQ(::ftruncate(cut.descriptor(), 2 * 4096), 0);
  std::string text = what([&] { ring.wait(ring.read(cut, 0, data)); });
  EXPECT_SAYS(text, "reading 4096 bytes at 8192 of the swap file in " + folder + " of rank 3");
  EXPECT_SAYS(text, "the file ends there");
  // Also in the middle of a block.
  ASSERT_EQ(::ftruncate(cut.descriptor(), 3 * 4096 + 512), 0);
  EXPECT_SAYS(what([&] { ring.wait(ring.read(cut, 0, data)); }), "at 12288 of the swap file");

  const IoFile full = IoFile::existing("/dev/full", true, 3);
  text = what([&] { ring.wait(ring.write(full, 0, data)); });
  EXPECT_SAYS(text, "of /dev/full of rank 3: No space left on device");

  const IoFile read_only = IoFile::existing("/proc/self/exe", false, 3);
  EXPECT_SAYS(what([&] { ring.wait(ring.write(read_only, 0, data)); }), "Bad file descriptor");
  // The ring still works.
  const IoFile good = IoFile::unnamed(folder, data.bytes(), 3);
  ring.wait(ring.write(good, 0, data));
}

TEST_F(Ring, RejectsInvalidOptions) {
  std::string text = what([&] { IoFile::unnamed(folder, std::uint64_t{1} << 50, 2); });
  EXPECT_SAYS(text,
              "the swap file in " + folder + " of rank 2 of 1125899906842624 bytes: No space");
  text = what([&] { IoFile::unnamed(folder + "/nowhere", 4096, 2); });
  EXPECT_SAYS(text, "nowhere of rank 2: No such file or directory");
  EXPECT_SAYS(what([] { IoRing({.block_size = 1000}); }), "block_size is 1000");
  EXPECT_SAYS(what([] { IoRing({.queue_depth = 0}); }), "queue_depth is 0");
}

TEST_F(Ring, ReportsBufferedFiles) {
  const IoFile file = IoFile::existing("/proc/self/status", false, 0);  // O_DIRECT fails
  EXPECT_FALSE(file.direct());
  EXPECT_SAYS(file.note(), "/proc/self/status of rank 0 is buffered");
}

TEST(RegisteredMemory, ReportsWhyTheKernelDidNotMapIt) {
  constexpr std::size_t limit = std::size_t{1} << 30;
  EXPECT_SAYS(why_not_mapped(ENOMEM, limit, 65536), "RLIMIT_MEMLOCK is too small (65536 bytes)");
  EXPECT_SAYS(why_not_mapped(EFAULT, limit + 4096, 65536),
              "one has 1073745920 bytes (maximum 1073741824)");
  EXPECT_SAYS(why_not_mapped(EOPNOTSUPP, limit, 65536), std::strerror(EOPNOTSUPP));
}

// A pipe without a writer.
TEST_F(Ring, AWaitTimesOut) {
  const std::string path = folder + "/pipe-" + std::to_string(::getpid());
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  const IoFile pipe = IoFile::existing(path, true, 5);
  ::unlink(path.c_str());
  const Tensor data = memory(4096);
  IoRing ring({.timeout_s = 0.05, .rank = 5});
  const auto reading = ring.read(pipe, 0, data);
  const std::string text = what([&] { ring.wait(reading); });
  EXPECT_SAYS(text, "reading " + path + " of rank 5: no block completed for 0.05 s");
}

TEST(Checksum, MatchesKnownValuesAndTheTable) {
  EXPECT_EQ(crc32c("123456789", 9), 0xe3069283u);
  EXPECT_EQ(crc32c("6789", 4, crc32c("12345", 5)), 0xe3069283u);
  std::vector<std::uint8_t> bytes(1000);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i * i);
  for (const std::size_t size : {0u, 1u, 7u, 8u, 63u, 64u, 65u, 128u, 999u, 1000u}) {
    EXPECT_EQ(crc32c(bytes.data(), size), software::crc32c(bytes.data(), size));
    EXPECT_EQ(wide_checksum(bytes.data(), size), software::wide_checksum(bytes.data(), size));
  }
  const std::uint32_t right = wide_checksum(bytes.data(), bytes.size());
  for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    bytes[bit / 8] ^= static_cast<std::uint8_t>(1u << bit % 8);
    EXPECT_NE(wide_checksum(bytes.data(), bytes.size()), right) << "bit " << bit;
    bytes[bit / 8] ^= static_cast<std::uint8_t>(1u << bit % 8);
  }
}

}  // namespace
}  // namespace zero

#include "machine/world/segment.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <vector>

#include "machine/base/error.h"

namespace machine {
namespace {

TEST(Segment, BlocksNeverOverlapAndAreReused) {
  Segment segment(100);
  struct Block {
    std::byte* data;
    std::size_t bytes;
    unsigned char mark;
  };
  std::vector<Block> blocks;
  std::mt19937 random(7);
  for (int i = 0; i < 5000; ++i) {
    if (blocks.empty() || random() % 5 < 3) {
      const std::size_t bytes = 1 + random() % 20000;
      auto* data = static_cast<std::byte*>(segment.allocate(bytes));
      ASSERT_NE(data, nullptr);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(data) % 64, 0u);
      EXPECT_GE(data, segment.base() + 100);
      const auto mark = static_cast<unsigned char>(random());
      std::memset(data, mark, bytes);
      blocks.push_back({data, bytes, mark});
    } else {
      const std::size_t chosen = random() % blocks.size();
      const Block block = blocks[chosen];
      for (std::size_t at = 0; at < block.bytes; ++at)
        ASSERT_EQ(static_cast<unsigned char>(block.data[at]), block.mark);
      segment.free(block.data, block.bytes);
      blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(chosen));
    }
  }
  for (const Block& block : blocks) segment.free(block.data, block.bytes);
  // All blocks are coalesced again, so the largest block of a fresh segment fits.
  Segment fresh(100);
  const std::size_t most = fresh.size() - 4096;
  EXPECT_NE(fresh.allocate(most), nullptr);
  EXPECT_NE(segment.allocate(most), nullptr);
  EXPECT_EQ(segment.allocate(1), nullptr);
}

TEST(Segment, AnotherMappingSeesTheSameBytes) {
  Segment segment(0);
  auto* data = static_cast<std::byte*>(segment.allocate(10000));
  std::memset(data, 42, 10000);
  const MappedSegment mapped(getpid(), segment.descriptor(), segment.size());
  EXPECT_NE(mapped.base(), segment.base());
  EXPECT_EQ(std::memcmp(mapped.base() + (data - segment.base()), data, 10000), 0);
}

TEST(Segment, NamesTheProcessThatItCannotRead) {
  try {
    MappedSegment mapped(getpid(), 99999, 4096);
    FAIL();
  } catch (const MachineError& error) {
    EXPECT_NE(std::string(error.what()).find(std::to_string(getpid())), std::string::npos);
  }
}

}  // namespace
}  // namespace machine

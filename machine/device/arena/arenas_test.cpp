#include "machine/device/arena/arenas.h"

#include <gtest/gtest.h>

#include <vector>

namespace machine {
namespace {

constexpr std::size_t mebibyte = std::size_t{1} << 20;

// Arenas of 8 MiB in a simulated device of 20 MiB.
class ArenasTest : public testing::Test {
 protected:
  void* take(std::size_t bytes) {
    if (bytes > room_) return nullptr;
    room_ -= bytes;
    return memory_.emplace_back(bytes).data();
  }
  void give(void* base) {
    ++given_;
    std::erase_if(memory_, [&](const auto& arena) {
      if (arena.data() != base) return false;
      room_ += arena.size();
      return true;
    });
  }
  std::byte* allocate(std::size_t bytes) {
    return static_cast<std::byte*>(arenas_->allocate(bytes));
  }

  std::size_t room_ = 20 * mebibyte;
  int given_ = 0;
  std::vector<std::vector<std::byte>> memory_;
  std::optional<Arenas> arenas_{std::in_place, 8 * mebibyte,
                                [this](std::size_t bytes) { return take(bytes); },
                                [this](void* base) { give(base); }};
};

// Every allocation is in an arena, is found by its place, and is reused.
TEST_F(ArenasTest, BlocksNeverOverlapOrMove) {
  std::byte* const small = allocate(1);
  std::byte* const next = allocate(1000);
  ASSERT_TRUE(small && next);
  EXPECT_EQ(next - small, static_cast<std::ptrdiff_t>(Arenas::alignment));
  EXPECT_EQ(arenas_->find(next + 10, 900), (Arenas::Place{0, Arenas::alignment + 10}));
  EXPECT_EQ(arenas_->find(memory_[0].data() + memory_[0].size() - 1, 2), std::nullopt);
  EXPECT_EQ(arenas_->find(&room_, 1), std::nullopt);
  // An allocation larger than an arena gets its own arena. A third arena of 8 MiB exceeds the
  // remaining memory.
  std::byte* const large = allocate(9 * mebibyte);
  ASSERT_TRUE(large);
  EXPECT_EQ(arenas_->find(large, 1), (Arenas::Place{1, 0}));
  EXPECT_EQ(allocate(8 * mebibyte), nullptr);
  EXPECT_EQ(arenas_->count(), 2u);
  arenas_->free(small, 1);
  arenas_->free(next, 1000);
  EXPECT_EQ(allocate(8 * mebibyte), small);    // one hole again
  EXPECT_NE(allocate(2 * mebibyte), nullptr);  // from the rest, less than 8 MiB
  EXPECT_EQ(arenas_->count(), 3u);
  EXPECT_EQ(given_, 0);
  arenas_.reset();
  EXPECT_EQ(given_, 3);
}

TEST_F(ArenasTest, EachAllocationCanHaveItsOwnArena) {
  arenas_.emplace(
      0, [this](std::size_t bytes) { return take(bytes); }, [this](void* base) { give(base); });
  std::byte* const first = allocate(1001);
  EXPECT_EQ(memory_.back().size(), 1001u);
  std::byte* const second = allocate(1000);
  EXPECT_EQ(arenas_->find(second, 1000), (Arenas::Place{1, 0}));
  arenas_->free(first, 1001);
  EXPECT_NE(allocate(1000), first);
  EXPECT_EQ(allocate(1001), first);
  EXPECT_EQ(arenas_->count(), 3u);
}

TEST_F(ArenasTest, UnusedArenasAreReleased) {
  std::byte* const first = allocate(6 * mebibyte);
  std::byte* const second = allocate(6 * mebibyte);
  EXPECT_FALSE(arenas_->release_unused());
  arenas_->free(first, 6 * mebibyte);
  EXPECT_EQ(allocate(12 * mebibyte), nullptr);
  EXPECT_TRUE(arenas_->release_unused());
  EXPECT_EQ(given_, 1);
  EXPECT_EQ(arenas_->find(second, 6 * mebibyte), (Arenas::Place{0, 0}));
  EXPECT_NE(allocate(12 * mebibyte), nullptr);
  EXPECT_EQ(arenas_->count(), 2u);
  arenas_->free(second, 6 * mebibyte);
}

TEST_F(ArenasTest, ArenasThatPeersMapAreKept) {
  arenas_->free(allocate(1), 1);
  std::shared_ptr<const void> mapped = arenas_->keep();
  EXPECT_FALSE(arenas_->release_unused());
  mapped.reset();
  EXPECT_TRUE(arenas_->release_unused());
  EXPECT_EQ(arenas_->count(), 0u);
}

}  // namespace
}  // namespace machine

#include "machine/device/host/stream_copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "machine/device/host/streaming.h"

namespace machine::host {
namespace {

// Of any length and place: less than a line, lines, and several pages at once. Writes nothing else.
TEST(StreamCopy, CopiesAllBytesAndNoOthers) {
  constexpr std::size_t around = 128;
  std::vector<std::byte> from(300'000), to(from.size() + 2 * around);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 131 + i / 256);
  constexpr auto other = std::byte{0xa5};
  for (const std::size_t bytes : {0, 1, 63, 64, 129, 4096, 32'768, 33'000, 65'537, 299'000})
    for (const std::size_t source : {0, 5})
      for (const std::size_t target : {0, 1, 32, 61}) {
        std::fill(to.begin(), to.end(), other);
        std::byte* const into = to.data() + around + target;
        stream_copy(into, from.data() + source, bytes);
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < bytes; ++i) wrong += into[i] != from[source + i];
        for (const std::byte* before = to.data(); before < into; ++before)
          wrong += *before != other;
        for (std::size_t i = around + target + bytes; i < to.size(); ++i) wrong += to[i] != other;
        EXPECT_EQ(wrong, 0) << bytes << " bytes from " << source << " to " << target;
      }
}

TEST(StreamFill, SetsAllElementsAndNoOthers) {
  constexpr std::size_t of_line = line_bytes / sizeof(std::uint16_t);
  alignas(line_bytes) std::uint16_t values[8 * of_line];
  for (const std::size_t count : {0UL, 1UL, of_line - 1, of_line, of_line + 1, 5 * of_line + 7}) {
    std::fill(std::begin(values), std::end(values), 3);
    std::uint16_t* const begin = values + of_line;
    stream_fill(begin, begin + count, std::uint16_t{0x1234});
    EXPECT_EQ(std::count(begin, begin + count, 0x1234), static_cast<std::ptrdiff_t>(count));
    EXPECT_EQ(std::count(std::begin(values), std::end(values), 3),
              static_cast<std::ptrdiff_t>(8 * of_line - count));
  }
}

}  // namespace
}  // namespace machine::host

#pragma once
// Damaged copies of valid files, for tests of file readers.

#include <array>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <string_view>

#include "harness/testing/test_folder.h"

namespace suite::testing {

using Folder = harness::TestFolder;
using harness::read_bytes;
using harness::write_bytes;

template <class T>
void append(std::string& bytes, const T& value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// Damages the bytes one to three times: flips a bit, removes the end, appends bytes, inserts a copy
// of other bytes, or writes a number that a careless reader would trust.
inline std::string damaged(std::string bytes, std::mt19937_64& random) {
  const auto below = [&](std::size_t end) { return end == 0 ? 0 : random() % end; };
  for (std::size_t many = 1 + below(3); many > 0 && !bytes.empty(); --many) {
    const std::size_t at = below(bytes.size());
    switch (below(6)) {
      case 0:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
        break;
      case 1:
        bytes.resize(at);
        break;
      case 2:
        bytes.append(1 + below(40), static_cast<char>(below(256)));
        break;
      case 3:
        bytes.insert(at, bytes.substr(below(bytes.size()), 1 + below(12)));
        break;
      case 4: {
        constexpr std::array<std::uint64_t, 10> numbers{
            0,        1, 0xffffffffffffffffu, 0x7fffffffffffffffu, 0x8000000000000000u, 0x7fffffffu,
            1u << 31, 3, 100'000'001,         0x2000000000000001u};
        const std::uint64_t number = numbers[below(numbers.size())] + below(2);
        const std::size_t size = std::min<std::size_t>(below(2) ? 8 : 4, bytes.size() - at);
        std::memcpy(bytes.data() + at, &number, size);
        break;
      }
      default: {  // a number in text
        const std::size_t digit = bytes.find_first_of("0123456789", at);
        constexpr std::array<std::string_view, 8> numbers{"-1",
                                                          "18446744073709551615",
                                                          "18446744073709551616",
                                                          "0",
                                                          "1e400",
                                                          "4611686018427387904",
                                                          "2.5",
                                                          "[[[["};
        if (digit != std::string::npos) bytes.replace(digit, 1, numbers[below(numbers.size())]);
      }
    }
  }
  return bytes;
}

}  // namespace suite::testing

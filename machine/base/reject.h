#pragma once
// Rejects an argument: throws std::invalid_argument with a formatted text.
//
//   if (size < 1) machine::reject("size is {}; expected at least 1", size);

#include <fmt/format.h>

#include <cstdint>
#include <stdexcept>
#include <string_view>
#include <utility>

namespace machine {

template <class... Values>
[[noreturn]] void reject(fmt::format_string<Values...> text, Values&&... values) {
  throw std::invalid_argument(fmt::format(text, std::forward<Values>(values)...));
}

inline void check_positive(std::string_view key, std::int64_t value) {
  if (value < 1) reject("{} is {}; expected 1 or more", key, value);
}

}  // namespace machine

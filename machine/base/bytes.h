#pragma once
// Values as bytes, for messages and files that one build of the program writes and reads.
//
//   std::string text(bytes_of(header));
//   Header header = value_of<Header>(text);

#include <cstring>
#include <ranges>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

namespace machine {

// A type whose bytes are its whole value: not a pointer, not a view of other memory.
template <class T>
concept Plain = std::is_trivially_copyable_v<T> && std::is_default_constructible_v<T> &&
                !std::is_pointer_v<T> &&
                !std::is_array_v<T> && !std::ranges::enable_view<T>;

template <Plain T>
std::string_view bytes_of(std::span<const T> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
}
template <Plain T>
std::string_view bytes_of(const std::vector<T>& values) {
  return bytes_of(std::span<const T>(values));
}
template <Plain T>
std::string_view bytes_of(const T& value) {
  return bytes_of(std::span<const T>(&value, 1));
}

// The value at the beginning of `bytes`, which need no alignment.
template <Plain T>
T value_of(std::string_view bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}
// All values in `bytes`.
template <Plain T>
std::vector<T> values_of(std::string_view bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return values;
}

}  // namespace machine

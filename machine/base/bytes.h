#pragma once
// Values as bytes, for messages and files that one build of the program writes and reads.
//
//   std::string text = encode(times);              // vectors, maps, strings, pairs of anything
//   auto times = decode<std::map<std::string, double>>(text);
//
// A struct that holds more than plain bytes names its members:
//
//   static auto members(auto& self) { return std::tie(self.name, self.values); }

#include <concepts>
#include <cstdint>
#include <cstring>
#include <optional>
#include <ranges>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace machine {

namespace detail {

template <class T>
inline constexpr bool is_pair = false;
template <class First, class Second>
inline constexpr bool is_pair<std::pair<First, Second>> = true;

}  // namespace detail

// A type whose bytes are its whole value: not a pointer, not a view of other memory. Not a pair:
// compilers disagree on whether a map's, with its const key, can be copied as bytes.
template <class T>
concept Plain =
    std::is_trivially_copyable_v<T> && std::is_default_constructible_v<T> &&
    !std::is_pointer_v<T> &&
    !std::is_array_v<T> && !detail::is_pair<std::remove_const_t<T>> && !std::ranges::enable_view<T>;

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

namespace detail {

template <class T>
struct Element : std::type_identity<typename T::value_type> {};
template <class T>
requires requires { typename T::mapped_type; }
struct Element<T> : std::type_identity<std::pair<typename T::key_type, typename T::mapped_type>> {};

// Returns the parts of a struct or a tuple, as references.
template <class T>
auto parts(T& value) {
  if constexpr (requires { std::remove_const_t<T>::members(value); })
    return std::remove_const_t<T>::members(value);
  else
    return std::apply([](auto&... part) { return std::tie(part...); }, value);
}
template <class T>
concept HasParts = requires(T& value) {
  T::members(value);
}
|| requires { std::tuple_size<T>::value; };

}  // namespace detail

template <class T>
void append(std::string& text, const T& value) {
  if constexpr (Plain<T>) {
    text += bytes_of(value);
  } else if constexpr (detail::HasParts<T>) {
    std::apply([&](const auto&... part) { (append(text, part), ...); }, detail::parts(value));
  } else if constexpr (requires { value.has_value(); }) {
    append(text, value.has_value());
    if (value) append(text, *value);
  } else {
    append(text, std::uint64_t{value.size()});
    if constexpr (requires { bytes_of(std::span(value)); })
      text += bytes_of(std::span(value));
    else
      for (const auto& element : value) append(text, element);
  }
}

// Removes the value's bytes from the front of `text`. Throws std::logic_error if some are missing.
template <class T>
void take(std::string_view& text, T& value) {
  const auto raw = [&](void* to, std::size_t bytes) {
    if (bytes > text.size()) throw std::logic_error("machine::take: bytes are missing");
    if (bytes > 0) std::memcpy(to, text.data(), bytes);
    text.remove_prefix(bytes);
  };
  if constexpr (Plain<T>) {
    raw(&value, sizeof value);
  } else if constexpr (detail::HasParts<T>) {
    std::apply([&](auto&... part) { (take(text, part), ...); }, detail::parts(value));
  } else if constexpr (requires { value.has_value(); }) {
    bool has_value = false;
    take(text, has_value);
    value.reset();
    if (has_value) take(text, value.emplace());
  } else {
    std::uint64_t size = 0;
    take(text, size);
    if (size > text.size()) throw std::logic_error("machine::take: bytes are missing");
    value.clear();
    if constexpr (requires { bytes_of(std::span<const typename T::value_type>(value)); }) {
      value.resize(size);
      raw(value.data(), size * sizeof(typename T::value_type));
    } else {
      for (; size > 0; --size) {
        typename detail::Element<T>::type element;
        take(text, element);
        value.insert(value.end(), std::move(element));
      }
    }
  }
}

template <class T>
std::string encode(const T& value) {
  std::string text;
  append(text, value);
  return text;
}
// Throws std::logic_error unless `text` is one T.
template <class T>
T decode(std::string_view text) {
  T value{};
  take(text, value);
  if (!text.empty()) throw std::logic_error("machine::decode: bytes are left");
  return value;
}

}  // namespace machine

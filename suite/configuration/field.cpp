#include "suite/configuration/field.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <type_traits>

#include "harness/unit/sweep.h"
#include "layers/models/activation_options.h"
#include "zero/stages/step_options.h"

namespace suite::configuration {
namespace {

template <class T>
struct Enumeration;
#define SHARDMARK_ENUMERATION(T, parse)                      \
  template <>                                                \
  struct Enumeration<T> {                                    \
    static T from(const std::string& text) { return parse; } \
  }
SHARDMARK_ENUMERATION(machine::Dtype, harness::AxisText<machine::Dtype>::parse("dtype", text));
SHARDMARK_ENUMERATION(machine::Transport,
                      harness::AxisText<machine::Transport>::parse("transport", text));
SHARDMARK_ENUMERATION(layers::Normalization, layers::normalization(text));
SHARDMARK_ENUMERATION(layers::PositionEmbedding, layers::position_embedding_type(text));
SHARDMARK_ENUMERATION(layers::RecomputeGranularity, layers::recompute_granularity(text));
SHARDMARK_ENUMERATION(layers::RecomputeMethod, layers::recompute_method(text));
SHARDMARK_ENUMERATION(zero::OffloadDevice, zero::find_offload_device(text));
#undef SHARDMARK_ENUMERATION

using Pair = std::array<double, 2>;

template <class T>
constexpr Kind kind_of() {
  if constexpr (std::is_same_v<T, bool>)
    return Kind::truth;
  else if constexpr (std::is_integral_v<T>)
    return Kind::whole;
  else if constexpr (std::is_floating_point_v<T>)
    return Kind::number;
  else if constexpr (std::is_same_v<T, Pair>)
    return Kind::pair;
  else
    return Kind::word;
}

template <class T>
std::string text_of(const T& value) {
  if constexpr (std::is_same_v<T, std::string>)
    return value.empty() ? "none" : value;
  else if constexpr (std::is_same_v<T, Pair>)
    return fmt::format("[{}, {}]", value[0], value[1]);
  else if constexpr (std::is_enum_v<T>)
    return std::string(name(value));
  else
    return fmt::format("{}", value);
}

template <class T>
T number_as(double number) {
  constexpr auto most = std::numeric_limits<T>::max();
  return number >= static_cast<double>(most) ? most : static_cast<T>(number);
}

template <class T>
void assign(T& into, const Value& value) {
  if constexpr (std::is_same_v<T, bool>)
    into = std::get<bool>(value);
  else if constexpr (std::is_floating_point_v<T>)
    into = std::get<double>(value);
  else if constexpr (std::is_integral_v<T>)
    into = number_as<T>(std::get<double>(value));
  else if constexpr (std::is_same_v<T, std::string>)
    into = std::get<std::string>(value);
  else if constexpr (std::is_same_v<T, Pair>)
    into = {std::get<std::vector<double>>(value).at(0), std::get<std::vector<double>>(value).at(1)};
  else
    into = Enumeration<T>::from(std::get<std::string>(value));
}

template <class T>
void copy(void* at, const void* from) {
  *static_cast<T*>(at) = *static_cast<const T*>(from);
}

template <class T>
struct TypeOf {
  static constexpr Field::Type type{
      kind_of<T>(), [](const void* at) { return text_of(*static_cast<const T*>(at)); },
      [](void* at, const Value& value) { assign(*static_cast<T*>(at), value); }, copy<T>};
};
template <class T>
struct TypeOf<std::optional<T>> {
  static constexpr Field::Type type{kind_of<T>(),
                                    [](const void* at) -> std::string {
                                      const auto& value = *static_cast<const std::optional<T>*>(at);
                                      return value ? text_of(*value) : "none";
                                    },
                                    [](void* at, const Value& value) {
                                      assign(static_cast<std::optional<T>*>(at)->emplace(), value);
                                    },
                                    copy<std::optional<T>>};
};

}  // namespace

template <class T>
const Field::Type& Field::type_of(const T*) {
  return TypeOf<T>::type;
}
#define SHARDMARK_FIELD(...) template const Field::Type& Field::type_of(const __VA_ARGS__*)
SHARDMARK_FIELD(bool);
SHARDMARK_FIELD(int);
SHARDMARK_FIELD(std::int64_t);
SHARDMARK_FIELD(std::uint64_t);
SHARDMARK_FIELD(double);
SHARDMARK_FIELD(std::string);
SHARDMARK_FIELD(std::optional<bool>);
SHARDMARK_FIELD(std::optional<int>);
SHARDMARK_FIELD(std::optional<std::int64_t>);
SHARDMARK_FIELD(Pair);
SHARDMARK_FIELD(machine::Dtype);
SHARDMARK_FIELD(machine::Transport);
SHARDMARK_FIELD(layers::Normalization);
SHARDMARK_FIELD(layers::PositionEmbedding);
SHARDMARK_FIELD(layers::RecomputeGranularity);
SHARDMARK_FIELD(layers::RecomputeMethod);
SHARDMARK_FIELD(zero::OffloadDevice);
#undef SHARDMARK_FIELD

std::string_view name(Kind kind) {
  constexpr std::string_view names[] = {"true or false", "a whole number", "a number", "a text",
                                        "a list of two numbers"};
  return names[static_cast<std::size_t>(kind)];
}

Value value_of(Kind kind, const std::string& text) {
  if (kind == Kind::word) return text;
  if (kind == Kind::truth) {
    if (text == "1" || text == "on" || text == "true") return true;
    if (text == "0" || text == "off" || text == "false") return false;
    return {};
  }
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(number)) return {};
  return number;
}

}  // namespace suite::configuration

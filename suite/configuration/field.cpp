#include "suite/configuration/field.h"

#include <fmt/format.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>
#include <type_traits>

#include "harness/unit/sweep.h"
#include "suite/options/options.h"

namespace suite::configuration {
namespace {

template <class T>
T parse(const std::string& text) {
  if constexpr (std::is_same_v<T, machine::Dtype>)
    return harness::AxisText<T>::parse("dtype", text);
  if constexpr (std::is_same_v<T, machine::Transport>)
    return harness::AxisText<T>::parse("transport", text);
  if constexpr (std::is_same_v<T, layers::Normalization>) return layers::normalization(text);
  if constexpr (std::is_same_v<T, layers::PositionEmbedding>)
    return layers::position_embedding_type(text);
  if constexpr (std::is_same_v<T, layers::Architecture>) return layers::architecture(text);
  if constexpr (std::is_same_v<T, layers::RecomputeGranularity>)
    return layers::recompute_granularity(text);
  if constexpr (std::is_same_v<T, layers::RecomputeMethod>) return layers::recompute_method(text);
  if constexpr (std::is_same_v<T, layers::CpCommType>) return layers::cp_comm_type(text);
  if constexpr (std::is_same_v<T, layers::SequenceOrder>) return layers::sequence_order(text);
  if constexpr (std::is_same_v<T, layers::LoadBalancing>) return layers::load_balancing(text);
  if constexpr (std::is_same_v<T, layers::TokenDropPolicy>) return layers::token_drop_policy(text);
  if constexpr (std::is_same_v<T, layers::TokenDispatcherType>)
    return layers::token_dispatcher_type(text);
  if constexpr (std::is_same_v<T, zero::OffloadDevice>) return zero::find_offload_device(text);
  if constexpr (std::is_same_v<T, layers::Fp8Format>) return layers::fp8_format(text);
  if constexpr (std::is_same_v<T, layers::Fp8Recipe>) return layers::fp8_recipe(text);
  if constexpr (std::is_same_v<T, layers::AmaxAlgorithm>) return layers::amax_algorithm(text);
  if constexpr (std::is_same_v<T, layers::SparseMode>) return layers::sparse_mode(text);
  if constexpr (std::is_same_v<T, layers::TensorParallelMode>)
    return layers::tensor_parallel_mode(text);
  if constexpr (std::is_same_v<T, layers::GridMethod>) return layers::grid_method(text);
}

using Pair = std::array<double, 2>;
using List = std::vector<int>;

template <class T>
constexpr bool is_optional = false;
template <class T>
constexpr bool is_optional<std::optional<T>> = true;

template <class T>
constexpr Kind kind_of(const T*) {
  if constexpr (is_optional<T>)
    return kind_of(static_cast<const typename T::value_type*>(nullptr));
  else if constexpr (std::is_same_v<T, bool>)
    return Kind::truth;
  else if constexpr (std::is_integral_v<T>)
    return Kind::whole;
  else if constexpr (std::is_floating_point_v<T>)
    return Kind::number;
  else if constexpr (std::is_same_v<T, Pair>)
    return Kind::pair;
  else if constexpr (std::is_same_v<T, List>)
    return Kind::list;
  else
    return Kind::word;
}

template <class T>
std::string text_of(const T& value) {
  if constexpr (is_optional<T>)
    return value ? text_of(*value) : "none";
  else if constexpr (std::is_same_v<T, std::string>)
    return value.empty() ? "none" : value;
  else if constexpr (std::is_same_v<T, Pair>)
    return fmt::format("[{}, {}]", value[0], value[1]);
  else if constexpr (std::is_same_v<T, List>)
    return fmt::format("[{}]", fmt::join(value, ", "));
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
  if constexpr (is_optional<T>)
    assign(into.emplace(), value);
  else if constexpr (std::is_same_v<T, bool>)
    into = std::get<bool>(value);
  else if constexpr (std::is_floating_point_v<T>)
    into = std::get<double>(value);
  else if constexpr (std::is_integral_v<T>)
    into = number_as<T>(std::get<double>(value));
  else if constexpr (std::is_same_v<T, std::string>)
    into = std::get<std::string>(value);
  else if constexpr (std::is_same_v<T, Pair>)
    into = {std::get<std::vector<double>>(value).at(0), std::get<std::vector<double>>(value).at(1)};
  else if constexpr (std::is_same_v<T, List>) {
    into.clear();
    for (const double number : std::get<std::vector<double>>(value))
      into.push_back(number_as<int>(number));
  } else
    into = parse<T>(std::get<std::string>(value));
}

}  // namespace

Kind Field::kind() const {
  return std::visit([](const auto* at) { return kind_of(at); }, at_);
}

const void* Field::address() const {
  return std::visit([](const auto* at) -> const void* { return at; }, at_);
}

void Field::set(const Value& value) const {
  std::visit([&](auto* at) { assign(*at, value); }, at_);
}

void Field::copy(const Field& other) const {
  std::visit([&](auto* at) { *at = *std::get<decltype(at)>(other.at_); }, at_);
}

Field Field::of_pair(std::size_t index) const { return Field((*std::get<Pair*>(at_))[index]); }

std::string Field::text() const {
  return std::visit([](const auto* at) { return text_of(*at); }, at_);
}

std::string_view name(Kind kind) {
  constexpr std::string_view names[] = {
      "true or false", "a whole number",        "a number",
      "a text",        "a list of two numbers", "a list of whole numbers"};
  return names[static_cast<std::size_t>(kind)];
}

namespace {

Value list_of(std::string text) {
  if (text.starts_with('[') && text.ends_with(']')) text = text.substr(1, text.size() - 2);
  std::ranges::replace(text, '+', ',');
  std::vector<double> numbers;
  std::istringstream words(text);
  for (std::string word; std::getline(words >> std::ws, word, ',');) {
    const auto number = number_of<int>(word);
    if (!number) return {};
    numbers.push_back(*number);
  }
  return numbers;
}

}  // namespace

Value value_of(Kind kind, const std::string& text) {
  if (kind == Kind::list) return list_of(text);
  if (kind == Kind::word) return text;
  if (kind == Kind::truth) {
    if (text == "1" || text == "on" || text == "true") return true;
    if (text == "0" || text == "off" || text == "false") return false;
    return {};
  }
  const auto number = number_of<double>(text);
  return number && std::isfinite(*number) ? Value(*number) : Value();
}

}  // namespace suite::configuration

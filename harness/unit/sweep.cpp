#include "harness/unit/sweep.h"
#include "machine/base/names.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <limits>

namespace harness {
namespace {

[[noreturn]] void not_a_value(std::string_view axis, std::string_view text,
                              std::string_view wanted) {
  throw UsageError(fmt::format("--{} is '{}'; expected {}", axis, text, wanted));
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (std::size_t begin = 0;;) {
    const std::size_t end = text.find(separator, begin);
    parts.push_back(text.substr(begin, end - begin));
    if (end == std::string_view::npos) return parts;
    begin = end + 1;
  }
}

// The value of a text of digits only; negative for any other text.
std::int64_t digits(std::string_view text) {
  std::int64_t value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && text[0] != '-' ? value : -1;
}

constexpr std::string_view size_form = "a size (example: 8, 4KiB, 64MiB)";

std::int64_t parse_size(std::string_view axis, std::string_view text) {
  static constexpr std::pair<std::string_view, int> suffixes[] = {
      {"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}, {"K", 10},
      {"M", 20},   {"G", 30},   {"T", 40},   {"B", 0}};
  std::string_view number = text;
  int shift = 0;
  for (const auto& [suffix, bits] : suffixes) {
    if (!number.ends_with(suffix)) continue;
    number.remove_suffix(suffix.size());
    shift = bits;
    break;
  }
  const std::int64_t value = digits(number);
  if (value < 0 || value > (std::numeric_limits<std::int64_t>::max() >> shift))
    not_a_value(axis, text, size_form);
  return value << shift;
}

std::int64_t parse_integer(std::string_view axis, std::string_view text) {
  const std::int64_t value = digits(text);
  if (value < 0 || value > std::numeric_limits<int>::max())
    not_a_value(axis, text, "a whole number");
  return value;
}

using NumberParser = std::int64_t (*)(std::string_view, std::string_view);

// "first:last[:xfactor|:+step]"; without a step numbers count and sizes double.
std::vector<std::int64_t> parse_range(std::string_view axis, std::string_view text,
                                      NumberParser parse) {
  constexpr std::string_view form = "a range first:last:xfactor or first:last:+step";
  constexpr std::size_t too_many = 10000;
  const std::vector<std::string_view> parts = split(text, ':');
  if (parts.size() > 3) not_a_value(axis, text, form);
  const std::int64_t first = parse(axis, parts[0]), last = parse(axis, parts[1]);
  std::int64_t factor = parse == parse_size ? 2 : 1, step = parse == parse_size ? 0 : 1;
  if (parts.size() == 3) {
    if (parts[2].starts_with('x')) {
      factor = parse_integer(axis, parts[2].substr(1));
      step = 0;
    } else if (parts[2].starts_with('+')) {
      factor = 1;
      step = parse(axis, parts[2].substr(1));
    } else {
      not_a_value(axis, text, form);
    }
  }
  if (first > last)
    throw UsageError(fmt::format("--{}: the range '{}' ends before it begins", axis, text));
  if (step == 0 && (factor < 2 || first == 0))
    throw UsageError(fmt::format("--{}: the range '{}' never ends", axis, text));
  std::vector<std::int64_t> values;
  for (std::int64_t value = first; value <= last; value = value * factor + step) {
    values.push_back(value);
    if (values.size() > too_many)
      throw UsageError(
          fmt::format("--{}: the range '{}' has more than {} values", axis, text, too_many));
    if (value > (std::numeric_limits<std::int64_t>::max() - step) / factor) break;
  }
  return values;
}

std::vector<std::int64_t> parse_numbers(std::string_view axis, std::string_view text,
                                        NumberParser parse) {
  std::vector<std::int64_t> values;
  for (std::string_view part : split(text, ',')) {
    if (part.find(':') == std::string_view::npos) {
      values.push_back(parse(axis, part));
    } else {
      const std::vector<std::int64_t> range = parse_range(axis, part, parse);
      values.insert(values.end(), range.begin(), range.end());
    }
  }
  return values;
}

// The value of `all` whose name is text.
template <class T, std::size_t count>
T parse_name(std::string_view axis, std::string_view text, const T (&all)[count]) {
  std::vector<std::string> names;
  for (const T& value : all) {
    if (text == name(value)) return value;
    names.emplace_back(name(value));
  }
  throw UsageError(machine::unknown(fmt::format("--{}", axis), text, names));
}

constexpr std::string_view profile_names[] = {"smoke", "quick", "acceptance", "paper"};
constexpr std::string_view timing_names[] = {"sample", "loop", "window", "armed"};

}  // namespace

std::string_view name(Profile profile) { return profile_names[static_cast<std::size_t>(profile)]; }

Profile parse_profile(std::string_view text) {
  using enum Profile;
  return parse_name("profile", text, {smoke, quick, acceptance, paper});
}

std::string_view name(Timing timing) { return timing_names[static_cast<std::size_t>(timing)]; }

Timing parse_timing(std::string_view text) {
  using enum Timing;
  return parse_name("timing", text, {sample, loop, window, armed});
}

std::vector<machine::Transport> usual_transports(machine::Device::Kind device) {
  using enum machine::Transport;
  if (device == machine::Device::Kind::host) return {shared_memory, mpi};
  return machine::cuda::count() > 1 ? std::vector{cuda_ipc, nccl} : std::vector{cuda_ipc};
}

std::vector<Bytes> powers(std::int64_t first, std::int64_t last, std::int64_t factor) {
  SHARDMARK_CHECK(factor, >, 1);
  SHARDMARK_CHECK(first, >, 0);
  std::vector<Bytes> sizes;
  for (std::int64_t size = first; size <= last; size *= factor) {
    sizes.push_back({size});
    if (size > last / factor) break;
  }
  return sizes;
}

void check_allowed(const AxisInfo& axis, const std::string& value) {
  const std::vector<std::string>& allowed = axis.allowed;
  if (allowed.empty() || std::ranges::find(allowed, value) != allowed.end()) return;
  const std::int64_t number = digits(value);
  if (number < 0)
    throw UsageError(machine::unknown(fmt::format("--{}", axis.name), value, allowed));
  const auto distance = [number](const std::string& text) {
    const std::int64_t other = digits(text);
    return other < 0 ? std::numeric_limits<std::int64_t>::max() : std::abs(other - number);
  };
  const auto near = std::ranges::min_element(allowed, {}, distance);
  throw UsageError(fmt::format("--{} is {}; expected one of {} (nearest: {})", axis.name, value,
                               fmt::join(allowed, ", "), *near));
}

template <class T>
std::string AxisText<T>::format(const T& value) {
  if constexpr (std::is_same_v<T, std::string>)
    return value;
  else if constexpr (std::is_same_v<T, bool>)
    return value ? "on" : "off";
  else if constexpr (std::is_same_v<T, int>)
    return std::to_string(value);
  else if constexpr (std::is_same_v<T, Bytes>)
    return std::to_string(value.value);
  else
    return std::string(name(value));
}

template <class T>
T AxisText<T>::parse(std::string_view axis, std::string_view text) {
  if constexpr (std::is_same_v<T, std::string>) {
    if (text.empty()) throw UsageError(fmt::format("--{} is empty; expected a name", axis));
    return std::string(text);
  } else if constexpr (std::is_same_v<T, bool>) {
    for (const std::string_view yes : {"on", "1", "true"})
      if (text == yes) return true;
    for (const std::string_view no : {"off", "0", "false"})
      if (text == no) return false;
    not_a_value(axis, text, "on or off");
  } else if constexpr (std::is_same_v<T, int>) {
    return static_cast<int>(parse_integer(axis, text));
  } else if constexpr (std::is_same_v<T, Bytes>) {
    return {parse_size(axis, text)};
  } else if constexpr (std::is_same_v<T, machine::Dtype>) {
    return parse_name(axis, text, machine::every_dtype);
  } else if constexpr (std::is_same_v<T, machine::Reduction>) {
    return parse_name(axis, text, machine::all_reductions);
  } else {
    return parse_name(axis, text, machine::all_transports);
  }
}

template <class T>
std::vector<T> AxisText<T>::parse_list(std::string_view axis, std::string_view text) {
  std::vector<T> values;
  if constexpr (std::is_same_v<T, int> || std::is_same_v<T, Bytes>) {
    constexpr bool is_int = std::is_same_v<T, int>;
    for (const std::int64_t value : parse_numbers(axis, text, is_int ? parse_integer : parse_size))
      values.push_back(T(value));
  } else {
    for (std::string_view part : split(text, ',')) values.push_back(parse(axis, part));
  }
  return values;
}

template struct AxisText<int>;
template struct AxisText<Bytes>;
template struct AxisText<bool>;
template struct AxisText<std::string>;
template struct AxisText<machine::Dtype>;
template struct AxisText<machine::Reduction>;
template struct AxisText<machine::Transport>;

}  // namespace harness

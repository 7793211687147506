#include "harness/unit/sweep.h"
#include "machine/base/names.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <limits>
#include <set>

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

// Returns the value of a text of digits only; negative for any other text.
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

// "first:last[:xfactor|:+step]". Without a step, numbers increase by 1 and sizes double.
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

// Returns the value of `all` whose name is text.
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
constexpr std::string_view kind_names[] = {"host", "cuda"};  // by machine::Device::Kind

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

std::vector<std::string> device_names() { return {std::begin(kind_names), std::end(kind_names)}; }

machine::Device::Kind parse_device(std::string_view text) {
  const auto found = std::ranges::find(kind_names, text);
  if (found == std::end(kind_names))
    throw UsageError(machine::unknown("--device", text, device_names()));
  return static_cast<machine::Device::Kind>(found - std::begin(kind_names));
}

std::vector<machine::Transport> usual_transports(machine::Device::Kind device) {
  using enum machine::Transport;
  return device == machine::Device::Kind::host ? std::vector{shared_memory, mpi}
                                               : std::vector{cuda_ipc, nccl};
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

namespace {

template <class T>
Variation::Value value_of(const std::function<Setter(const T&)>& set, const T& value) {
  return {set(value), AxisText<T>::format(value)};
}

}  // namespace

template <class T>
Variation detail::vary(std::any field, const std::function<Setter(const T&)>& set,
                       const std::vector<T>& values) {
  Variation variation{std::move(field), {}};
  for (const auto& value : values) variation.values.push_back(value_of<T>(set, value));
  return variation;
}

template <class T>
void AnySweep::add_axis(const std::string& name, const std::any& field,
                        std::function<bool(const std::any&)> is,
                        const std::function<Setter(const T&)>& set, const T& usual,
                        const std::vector<T>& allowed) {
  for (const Axis& other : axes_) {
    SHARDMARK_CHECK(other.info.name, !=, name);
    SHARDMARK_CHECK(other.is(field) ? other.info.name : "", ==, "");
  }
  Axis axis;
  axis.info.name = name;
  for (const auto& value : allowed) axis.info.allowed.push_back(AxisText<T>::format(value));
  axis.is = std::move(is);
  axis.parse = [info = axis.info, set](std::string_view text) {
    Values values;
    std::set<std::string> texts;
    for (const auto& value : AxisText<T>::parse_list(info.name, text)) {
      Variation::Value one = value_of<T>(set, value);
      check_allowed(info, one.text);
      if (texts.insert(one.text).second) values.push_back(std::move(one));
    }
    return values;
  };
  if (std::is_same_v<T, bool>) axis.info.allowed = {"off", "on"};
  axis.usual = {value_of<T>(set, usual)};
  axis.info.usual = axis.usual.front().text;
  check_allowed(axis.info, axis.info.usual);
  axes_.push_back(std::move(axis));
}

void AnySweep::add_axis(const AxisInfo& info,
                        const std::function<std::vector<std::string>(std::string_view)>& expand,
                        const std::function<Setter(const std::string&)>& set) {
  for (const Axis& other : axes_) SHARDMARK_CHECK(other.info.name, !=, info.name);
  check_allowed(info, info.usual);
  axes_.push_back({info,
                   [name = info.name](const std::any& other) {
                     const auto* const same = std::any_cast<std::string>(&other);
                     return same && *same == name;
                   },
                   [info, expand, set](std::string_view text) {
                     Values values;
                     for (const std::string& one : expand(text)) {
                       check_allowed(info, one);
                       values.push_back({set(one), one});
                     }
                     return values;
                   },
                   {{set(info.usual), info.usual}}});
}

void AnySweep::add_slice(std::vector<Profile> profiles, std::string name,
                         const std::vector<Variation>& variations, Diagonal diagonal) {
  Slice slice{std::move(profiles), std::move(name), {}, diagonal};
  for (const Variation& variation : variations) {
    const auto axis =
        std::ranges::find_if(axes_, [&](const Axis& one) { return one.is(variation.field); });
    SHARDMARK_CHECK(axis - axes_.begin(), <, std::ssize(axes_));
    for (const Variation::Value& value : variation.values) check_allowed(axis->info, value.text);
    const bool is_new = slice.values.emplace(axis - axes_.begin(), variation.values).second;
    SHARDMARK_CHECK(is_new, ==, true);
  }
  slices_.push_back(std::move(slice));
}

bool AnySweep::Slice::has(Profile profile) const {
  return std::ranges::find(profiles, profile) != profiles.end();
}

std::vector<AxisInfo> AnySweep::axes(Profile profile) const {
  std::vector<AxisInfo> infos;
  for (std::size_t i = 0; i < axes_.size(); ++i) {
    AxisInfo& info = infos.emplace_back(axes_[i].info);
    for (const Slice& slice : slices_) {
      if (!slice.has(profile)) continue;
      const auto varied = slice.values.find(i);
      for (const auto& value : varied == slice.values.end() ? axes_[i].usual : varied->second)
        if (std::ranges::find(info.values, value.text) == info.values.end())
          info.values.push_back(value.text);
    }
  }
  return infos;
}

std::vector<AnySweep::Selected> AnySweep::select(Profile profile, const AxisFlags& flags,
                                                 bool all_values) const {
  std::vector<std::string> names;
  for (const Axis& axis : axes_) names.push_back(axis.info.name);
  for (const auto& [flag, text] : flags)
    if (std::ranges::find(names, flag) == names.end())
      throw UsageError(machine::unknown("axis", flag, names));
  std::map<std::size_t, Values> given;  // by axis
  for (std::size_t i = 0; i < axes_.size(); ++i)
    if (const auto flag = flags.find(names[i]); flag != flags.end())
      given[i] = axes_[i].parse(flag->second);

  std::vector<Selected> cases;
  std::set<AxisValues> kept;
  std::map<std::pair<std::string, std::string>, std::string> refused;  // (axis, value) -> why
  std::set<std::pair<std::string, std::string>> accepted;
  for (const Slice& slice : slices_) {
    if (!slice.has(profile)) continue;
    std::vector<const Values*> values;  // by axis
    bool whole = true;
    for (std::size_t i = 0; i < axes_.size(); ++i) {
      const auto replaced = given.find(i);
      const auto varied = slice.values.find(i);
      values.push_back(replaced != given.end()        ? &replaced->second
                       : varied != slice.values.end() ? &varied->second
                                                      : &axes_[i].usual);
      whole = whole && (replaced == given.end() || varied == slice.values.end());
    }
    const Diagonal diagonal = whole ? slice.diagonal : Diagonal{};
    const std::shared_ptr<void> the_case = copy_(start_.get());
    std::vector<const std::string*> texts(axes_.size());
    const auto consider = [&] {
      std::string why;
      for (const auto& only : only_)
        if (why = only(the_case.get()); !why.empty()) break;
      for (const auto& [axis, unused] : given) {
        if (why.empty())
          accepted.emplace(names[axis], *texts[axis]);
        else
          refused.try_emplace({names[axis], *texts[axis]}, why);
      }
      if (!why.empty()) return;
      AxisValues chosen;
      for (std::size_t i = 0; i < axes_.size(); ++i) chosen.emplace_back(names[i], *texts[i]);
      if (kept.insert(chosen).second)
        cases.push_back({copy_(the_case.get()), std::move(chosen), slice.name});
    };
    const auto choose = [&](const auto& self, std::size_t axis, std::size_t sum) -> void {
      if (axis == axes_.size()) {
        if (sum % diagonal.of == diagonal.at) consider();
        return;
      }
      for (std::size_t i = 0; i < values[axis]->size(); ++i) {
        const Variation::Value& value = (*values[axis])[i];
        value.set(the_case.get());
        texts[axis] = &value.text;
        self(self, axis + 1, slice.values.contains(axis) ? sum + i : sum);
      }
    };
    choose(choose, 0, 0);
  }
  std::erase_if(refused, [&](const auto& one) { return accepted.contains(one.first); });
  if (refused.empty() || !all_values) return cases;
  const auto& [one, why] = *refused.begin();
  // With several values, only the reason identifies the wrong value.
  throw UsageError(refused.size() > 1 ? why : fmt::format("{} {}: {}", one.first, one.second, why));
}

#define SHARDMARK_AXIS_TYPE(T)                                                      \
  template struct AxisText<T>;                                                      \
  template Variation detail::vary(std::any, const std::function<Setter(const T&)>&, \
                                  const std::vector<T>&);                           \
  template void AnySweep::add_axis(                                                 \
      const std::string&, const std::any&, std::function<bool(const std::any&)>,    \
      const std::function<Setter(const T&)>&, const T&, const std::vector<T>&);
SHARDMARK_AXIS_TYPE(int)
SHARDMARK_AXIS_TYPE(Bytes)
SHARDMARK_AXIS_TYPE(bool)
SHARDMARK_AXIS_TYPE(std::string)
SHARDMARK_AXIS_TYPE(machine::Dtype)
SHARDMARK_AXIS_TYPE(machine::Reduction)
SHARDMARK_AXIS_TYPE(machine::Transport)
#undef SHARDMARK_AXIS_TYPE

}  // namespace harness

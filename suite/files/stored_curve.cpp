#include "suite/files/stored_curve.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <stdexcept>

#include "harness/json/json.h"
#include "machine/base/error.h"
#include "machine/base/names.h"
#include "machine/device/dtype.h"
#include "suite/files/mapped_file.h"
#include "suite/files/new_file.h"

namespace suite {
namespace {
using harness::Json;

constexpr std::string_view format_name = "shardmark loss curve 1";
// FNV-1a over all keys and values.
std::string hash_of(const CurveKeys& keys) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const auto& [key, value] : keys)
    for (const char c : fmt::format("{}={}\n", key, value))
      hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return fmt::format("{:016x}", hash);
}

std::string text_at(const Json& object, const char* key) {
  return object.at(key).get<std::string>();
}

// For messages. A value of another type can be nested deeply.
std::string shown(const Json& value) {
  return value.is_number() ? value.dump() : std::string("a value of type ") + value.type_name();
}

double number_of_json(const Json& value, const char* key) {
  const double number = value.is_number() ? value.get<double>() : -1;
  if (!std::isfinite(number) || number < 0)
    throw std::invalid_argument(
        fmt::format("{} has {}; expected numbers from 0", key, shown(value)));
  return number;
}

// Returns a whole number from 1.
std::uint64_t count_of_json(const Json& value, const char* key, std::uint64_t most) {
  const std::uint64_t count = value.is_number_unsigned() ? value.get<std::uint64_t>() : 0;
  if (count < 1 || count > most)
    throw std::invalid_argument(
        fmt::format("{} has {}; expected 1 to {}", key, shown(value), most));
  return count;
}

StoredCurve parse(const Json& whole) {
  if (const std::string format = text_at(whole, "format"); format != format_name)
    throw std::invalid_argument(
        fmt::format("format is {}; expected '{}'", in_quotes(format), format_name));
  StoredCurve curve;
  for (const auto& [key, value] : whole.at("configuration").items())
    curve.configuration.emplace_back(key, value.get<std::string>());
  if (const std::string hash = text_at(whole, "configuration_hash");
      hash != hash_of(curve.configuration))
    throw std::invalid_argument(
        fmt::format("configuration_hash is {}; expected {}, the hash of "
                    "its configuration",
                    printable(hash), hash_of(curve.configuration)));
  curve.dtype = text_at(whole, "dtype");
  curve.judged = parse_against(printable(text_at(whole, "judged")));
  for (const Json& loss : whole.at("losses"))
    curve.losses.push_back(number_of_json(loss, "losses"));
  constexpr std::size_t most_steps = 100'000;
  if (curve.losses.empty() || curve.losses.size() > most_steps)
    throw std::invalid_argument(
        fmt::format("losses has {} numbers; expected 1 to {}", curve.losses.size(), most_steps));
  const std::uint64_t steps = curve.losses.size();
  if (count_of_json(whole.at("steps"), "steps", most_steps) != steps)
    throw std::invalid_argument(fmt::format("steps is {}; expected {}, the number of losses",
                                            whole.at("steps").get<std::uint64_t>(), steps));
  for (const Json& step : whole.at("skipped_steps"))
    curve.skipped.push_back(static_cast<int>(count_of_json(step, "skipped_steps", steps)));
  for (const machine::Dtype dtype : machine::floating_dtypes) {
    const std::string key(machine::name(dtype));
    curve.tolerance[key] = number_of_json(whole.at("tolerance").at(key), "tolerance");
  }
  return curve;
}

}  // namespace

std::string_view name(Against against) {
  constexpr std::string_view names[] = {"cpu", "stored", "none"};
  return names[static_cast<std::size_t>(against)];
}

const std::vector<std::string>& against_names() {
  static const std::vector<std::string> names{"cpu", "stored", "none"};
  return names;
}

Against parse_against(const std::string& text) {
  const auto found = std::ranges::find(against_names(), text);
  if (found == against_names().end())
    throw machine::UsageError(machine::unknown("--reference", text, against_names()));
  return static_cast<Against>(found - against_names().begin());
}

StoredCurve read_curve(const std::string& path) {
  const MappedFile file(path);
  try {
    return parse(Json::parse(file.text()));
  } catch (const harness::JsonError& error) {
    throw FileError("{}: {}", path, printable(error.what()));
  } catch (const std::invalid_argument& error) {
    throw FileError("{}: {}", path, error.what());
  } catch (const machine::UsageError& error) {
    throw FileError("{}: {}", path, error.what());
  }
}

void write_curve(const std::string& path, const StoredCurve& curve) {
  Json whole{{"format", format_name}};
  for (const auto& [key, value] : curve.configuration) whole["configuration"][key] = value;
  whole["configuration_hash"] = hash_of(curve.configuration);
  whole["dtype"] = curve.dtype;
  whole["judged"] = name(curve.judged);
  whole["steps"] = curve.losses.size();
  whole["losses"] = curve.losses;
  whole["skipped_steps"] = curve.skipped;
  for (const auto& [dtype, tolerance] : curve.tolerance) whole["tolerance"][dtype] = tolerance;
  const std::string text = whole.dump(1) + "\n";
  NewFile file(path);
  file.write(text.data(), text.size());
  file.commit();
}

void check_curve(const std::string& path, const StoredCurve& curve, const CurveKeys& mine) {
  const auto value_in = [](const CurveKeys& keys, const std::string& key) {
    const auto found = std::ranges::find(keys, key, &CurveKeys::value_type::first);
    return found == keys.end() ? std::string("not set") : found->second;
  };
  for (const auto& [key, value] : mine)
    if (const std::string stored = value_in(curve.configuration, key); stored != value)
      throw FileError("{} is {}; expected {}, as in --reference-file {}", key, value,
                      printable(stored), path);
  for (const auto& [key, stored] : curve.configuration)
    if (value_in(mine, key) == "not set")
      throw FileError("{} is not set; expected {}, as in --reference-file {}", printable(key),
                      printable(stored), path);
}

}  // namespace suite

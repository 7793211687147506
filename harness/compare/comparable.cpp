#include "harness/compare/comparable.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <ranges>
#include <set>

#include "harness/json/json.h"
#include "harness/record/record_json.h"
#include "machine/base/names.h"

namespace harness {
namespace {
constexpr std::string_view absent = "absent";
constexpr std::string_view added_groups[] = {"hardware.network", "hardware.gpu.", "place",
                                             "software.nccl.network"};
// NCCL's connections depend on the cases that ran, and are a result of what is compared.
constexpr std::string_view results_group = "nccl.";
// Numbers that differ a little on the same machine: the clock is measured, and each kernel keeps
// another part of the memory.
constexpr std::string_view varying_fields[] = {"context.mhz_per_cpu", "hardware.memory_bytes"};
constexpr double tolerance = 0.01;
constexpr int deepest = 8;

// Variables that identify one launch, or repeat host, binding and the rank count.
constexpr std::string_view of_one_launch[] = {
    "SLURM_",
    "OMPI_ARGV",
    "OMPI_COMMAND",
    "OMPI_COMM_WORLD_",
    "OMPI_APP_CTX_",
    "OMPI_NUM_APP_CTX",
    "OMPI_FIRST_RANKS",
    "OMPI_UNIVERSE_SIZE",
    "OMPI_FILE_LOCATION",
    "OMPI_MCA_ess",
    "OMPI_MCA_orte_",
    "OMPI_MCA_initial_wdir",
    "MPIR_CVAR_CH3_INTERFACE_HOSTNAME",
    "SHARDMARK_STARTED_HERE",
    "SHARDMARK_LAUNCH_RANKS",
    "SHARDMARK_FIGURES",
};

bool is_of_one_launch(std::string_view field) {
  constexpr std::string_view environment = "environment.";
  if (!field.starts_with(environment)) return false;
  field.remove_prefix(environment.size());
  return std::ranges::any_of(of_one_launch,
                             [&](std::string_view name) { return field.starts_with(name); });
}

void flatten(const Json& json, const std::string& path, int depth, Fields& fields) {
  if (depth > deepest)
    throw std::runtime_error(fmt::format("{} is nested more than {} levels deep", path, deepest));
  if (json.is_object()) {
    for (const auto& [key, value] : json.items())
      flatten(value, path.empty() ? key : path + "." + key, depth + 1, fields);
  } else if (!is_of_one_launch(path)) {
    fields[path] = json.is_string() ? json.get<std::string>() : json.dump();
  }
}

// "node-a x4, node-b x4".
std::string in_turn(const std::vector<std::string>& values) {
  std::string text;
  for (std::size_t first = 0, end = 0; first < values.size(); first = end) {
    while (end < values.size() && values[end] == values[first]) ++end;
    text += fmt::format("{}{}", first == 0 ? "" : ", ", values[first]);
    if (end - first > 1) text += fmt::format(" x{}", end - first);
  }
  return text;
}

std::string value_of(const Fields& fields, const std::string& name) {
  const auto value = fields.find(name);
  return value == fields.end() ? std::string(absent) : value->second;
}

Fields fields_of(const Json& json) {
  const Json &same = json.at("same_on_all_ranks"), &ranks = json.at("ranks");
  if (!same.is_object() || !ranks.is_array() || ranks.empty())
    throw std::runtime_error("same_on_all_ranks is not an object or ranks is not a list");
  Fields fields;
  flatten(same, "", 0, fields);
  std::vector<Fields> each;
  std::set<std::string> names;
  for (const Json& rank : ranks) {
    if (!rank.is_object()) throw std::runtime_error("a rank is not an object");
    flatten(rank, "", 0, each.emplace_back());
    each.back().erase("rank");
    for (const auto& [name, value] : each.back()) names.insert(name);
  }
  for (const std::string& name : names) {
    std::vector<std::string> values;
    for (const Fields& rank : each) values.push_back(value_of(rank, name));
    fields[name] = in_turn(values);
  }
  fields["ranks"] = std::to_string(each.size());
  return fields;
}

// Adds the resulting values of configuration files; their origin does not matter.
void add_configuration(const std::string& configuration, Fields& fields) {
  if (configuration.empty()) return;
  const Json json = Json::parse(configuration);
  for (const auto& [key, entry] : json.at("keys").items())
    flatten(entry.at("value"), "configuration." + key, 1, fields);
}

// Returns the numbers of a text by in_turn(), "7 x4, 9". Empty if it has other values.
std::vector<double> numbers(std::string_view text) {
  constexpr long most_ranks = 1 << 20;
  const auto read = [&](auto& value) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    return error == std::errc();
  };
  const auto skip = [&](std::string_view next) {
    if (!text.starts_with(next)) return false;
    text.remove_prefix(next.size());
    return true;
  };
  std::vector<double> all;
  do {
    double value = 0;
    long times = 1;
    if (!read(value) || (skip(" x") && (!read(times) || times < 1 || times > most_ranks)))
      return {};
    all.insert(all.end(), static_cast<std::size_t>(times), value);
  } while (skip(", "));
  return text.empty() ? all : std::vector<double>{};
}

bool same(const std::string& field, const std::string& base, const std::string& next) {
  if (base == next) return true;
  if (std::ranges::find(varying_fields, field) == std::end(varying_fields)) return false;
  std::vector<double> a = numbers(base), b = numbers(next);
  if (a.empty() || b.empty()) return false;
  // A value that all ranks share is there once.
  if (a.size() == 1) a.resize(b.size(), a.front());
  if (b.size() == 1) b.resize(a.size(), b.front());
  return std::ranges::equal(a, b, [](double one, double other) {
    return std::abs(one - other) <= tolerance * std::max(one, other);
  });
}

// Returns whether `name` is a sequence of whole parts of the dotted `field`.
bool stands_for(std::string_view name, std::string_view field) {
  if (name.empty()) return false;
  for (std::size_t at = field.find(name); at != std::string_view::npos;
       at = field.find(name, at + 1)) {
    const std::size_t end = at + name.size();
    if ((at == 0 || field[at - 1] == '.') && (end == field.size() || field[end] == '.'))
      return true;
  }
  return false;
}

// Axes whose values were 0 and 1.
constexpr std::string_view axes_of_zero_and_one[] = {
    "bias",          "cpu-checkpointing", "distribute-saved-activations",
    "gather_output", "input_is_parallel", "sequence-parallel",
    "skip_bias_add", "uneven-tokens",     "use-flash-attn",
};

std::string current_value(std::string_view axis, const std::string& value) {
  if (std::ranges::find(axes_of_zero_and_one, axis) == std::end(axes_of_zero_and_one)) return value;
  return value == "0" ? "off" : value == "1" ? "on" : value;
}

}  // namespace

AxisValues current_axes(AxisValues axes) {
  for (auto& [axis, value] : axes) value = current_value(axis, value);
  return axes;
}

std::string current_case_name(const std::string& name) {
  const auto [unit, axes] = read_case_name(name);
  return case_name(unit, current_axes(axes));
}

Fields read_fields(const std::string& directory, const RunFile& run) {
  const std::string path = directory + "/environment.json";
  std::ifstream file(path, std::ios::binary);
  if (!file)
    throw UsageError(fmt::format("cannot read {}: {}; it describes the machines of the run", path,
                                 std::strerror(errno)));
  const std::string text(std::istreambuf_iterator<char>(file), {});
  Fields fields;
  try {
    fields = fields_of(Json::parse(text));
  } catch (const std::exception& error) {
    const auto* const json = dynamic_cast<const JsonError*>(&error);
    if (json != nullptr && json->kind == JsonError::Kind::syntax)
      throw UsageError(
          fmt::format("{} is cut off or not JSON: byte {} of {}", path, json->byte, text.size()));
    throw UsageError(fmt::format("{} is not a fingerprint of a run: {}", path, error.what()));
  }
  for (const auto& [key, value] : run.machine) fields["context." + key] = value;
  try {
    add_configuration(run.context.configuration, fields);
  } catch (const std::exception& error) {
    throw UsageError(
        fmt::format("{}/run.json, context, configuration: {}", directory, error.what()));
  }
  return fields;
}

bool Factors::declare(std::string_view field) const {
  return std::ranges::any_of(names_,
                             [&](const std::string& name) { return stands_for(name, field); });
}

bool Factors::name(std::string_view name) const {
  return std::ranges::find(names_, name) != names_.end();
}

void Factors::check(const std::vector<const Fields*>& known,
                    const std::set<std::string>& others) const {
  for (const std::string& name : names_) {
    std::set<std::string> parts = others;
    bool found = parts.contains(name);
    for (const Fields* fields : known)
      for (const auto& [field, value] : *fields) {
        found = found || stands_for(name, field);
        parts.insert(field);
        for (const auto part : std::views::split(field, '.'))
          parts.emplace(part.begin(), part.end());
      }
    if (found) continue;
    const std::string near = machine::nearest(name, {parts.begin(), parts.end()});
    throw UsageError(near.empty()
                         ? fmt::format("--factor {}: no field of these runs has that name; "
                                       "environment.json lists them",
                                       name)
                         : fmt::format("--factor {}: no field of these runs has that name; did you "
                                       "mean '{}'?",
                                       name, near));
  }
}

std::vector<Difference> differences(const Fields& base, const Fields& next,
                                    const Factors& factors) {
  std::set<std::string> names;
  // A run of an older program recorded no field of an added group.
  const auto records = [](const Fields& fields, std::string_view group) {
    const auto first = fields.lower_bound(std::string(group));
    return first != fields.end() && first->first.starts_with(group);
  };
  for (const Fields* fields : {&base, &next})
    for (const auto& [name, value] : *fields)
      if (!name.starts_with(results_group) &&
          std::ranges::none_of(added_groups, [&](std::string_view group) {
            return name.starts_with(group) && !(records(base, group) && records(next, group));
          }))
        names.insert(name);
  std::vector<Difference> all;
  for (const std::string& name : names) {
    const std::string before = value_of(base, name), after = value_of(next, name);
    if (!same(name, before, after)) all.push_back({name, before, after, factors.declare(name)});
  }
  return all;
}

void refuse_another(const std::string& directory, const RunFile& run,
                    const std::string& environment, const std::string& configuration) {
  Fields before = read_fields(directory, run), now = fields_of(Json::parse(environment));
  std::erase_if(before, [](const auto& field) { return field.first.starts_with("context."); });
  add_configuration(configuration, now);
  const std::vector<Difference> found = differences(before, now, Factors({}));
  if (found.empty()) return;
  constexpr std::size_t most = 3;
  std::string text;
  for (std::size_t i = 0; i < std::min(most, found.size()); ++i)
    text += fmt::format("{}{} was {} and is {}", i == 0 ? "" : "; ", found[i].field, found[i].base,
                        found[i].next);
  if (found.size() > most) text += fmt::format("; and {} more", found.size() - most);
  throw UsageError(fmt::format("{} cannot be continued here: {}", directory, text));
}

}  // namespace harness

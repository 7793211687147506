#include "suite/program/scaling.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "machine/base/names.h"
#include "machine/world/binding.h"
#include "suite/options/options.h"

namespace suite {

using harness::UsageError;

const std::map<std::string, std::string>& degrees() {
  static const std::map<std::string, std::string> all{{"tp", "tensor-model-parallel-size"},
                                                      {"pp", "pipeline-model-parallel-size"},
                                                      {"dp", "data-parallel-size"},
                                                      {"cp", "context-parallel-size"}};
  return all;
}

std::string short_name(const std::string& axis) {
  for (const auto& [brief, whole] : degrees())
    if (whole == axis) return brief;
  return axis;
}

namespace {

constexpr const char* batch_axis = "global-batch-size";
constexpr const char* micro_batch_axis = "micro-batch-size";

std::vector<int> numbers(const std::string& axis, const std::string& text) {
  return harness::AxisText<int>::parse_list(axis, text);
}

int one_number(const std::string& axis, const std::string& text) {
  const std::vector<int> all = numbers(axis, text);
  if (all.size() != 1 || all.front() < 1)
    reject("--{} is {}; expected one positive number for scale", axis, text);
  return all.front();
}

// Returns the units that have all axes that scaling sets, with their default batches.
std::map<std::string, int> scalable(harness::Profile profile) {
  std::map<std::string, int> units;
  for (const harness::Family* family : harness::families()) {
    std::set<std::string> wanted{batch_axis, micro_batch_axis, "ranks"};
    for (const auto& [brief, whole] : degrees()) wanted.insert(whole);
    int batch = 0;
    for (const harness::AxisInfo& axis : family->axes({profile})) {
      wanted.erase(axis.name);
      if (axis.name == batch_axis) batch = numbers(axis.name, axis.values.front()).front();
    }
    if (wanted.empty()) units[std::string(family->name())] = batch;
  }
  return units;
}

}  // namespace

Scaling scaling_of(const std::string& degree, bool strong, bool weak) {
  if (degree.empty()) reject("scale requires --axis dp, tp, pp or cp");
  if (!degrees().contains(degree))
    throw UsageError(machine::unknown("axis", degree, {"dp", "tp", "pp", "cp"}));
  if (strong == weak)
    reject(
        "scale requires one of --strong (the same step on more ranks) and --weak (a batch that "
        "grows with them)");
  return {.axis = degrees().at(degree), .weak = weak};
}

void Scaling::choose(const std::vector<std::string>& units, harness::Profile profile,
                     harness::AxisFlags& flags) {
  const std::map<std::string, int> known = scalable(profile);
  std::vector<std::string> names;
  for (const auto& [unit, batch] : known) names.push_back(unit);
  if (units.empty()) reject("scale requires a unit: one of {}", fmt::join(names, ", "));
  for (const std::string& unit : units)
    if (!known.contains(unit)) throw UsageError(machine::unknown("unit that scales", unit, names));
  if (flags.contains(axis))
    reject("--{} conflicts with scale, which sets it; --ranks lists the numbers of ranks",
           short_name(axis));
  for (const auto& [brief, whole] : degrees()) {
    if (whole == axis) continue;
    const auto given = flags.try_emplace(whole, "1").first;
    others *= one_number(brief, given->second);
  }
  if (const auto given = flags.find("ranks"); given != flags.end()) {
    ranks = numbers("ranks", given->second);
    std::ranges::sort(ranks);
    if (ranks.front() == ranks.back())
      reject("--ranks is {}; expected several numbers of ranks (example: --ranks 1,2,4)",
             given->second);
  } else {
    const auto cores = static_cast<int>(machine::given_cores().size());
    for (int count = others; count <= std::max(cores, 2 * others); count *= 2)
      ranks.push_back(count);
  }
  for (const int count : ranks)
    if (count < 1 || count % others != 0)
      reject("--ranks is {}; expected a multiple of the other degrees' product {}", count, others);
  const auto given_batch = flags.find(batch_axis);
  batch = given_batch == flags.end() ? known.at(units.front())
                                     : one_number(batch_axis, given_batch->second);
  std::vector<int> grown, batches;
  for (const int count : ranks) {
    grown.push_back(count / others);
    if (weak && batch * count % ranks.front() != 0)
      reject("--{} {}, grown to {} ranks from {}, is not a whole number of sequences", batch_axis,
             batch, count, ranks.front());
    batches.push_back(weak ? batch * count / ranks.front() : batch);
  }
  // Sets the same micro-batch in all cases, small enough for the largest number of ranks.
  if (short_name(axis) == "pp")
    flags.try_emplace(micro_batch_axis, "1");
  else if (short_name(axis) == "dp" && !weak)
    flags.try_emplace(micro_batch_axis, std::to_string(std::max(1, batch / grown.back())));
  flags["ranks"] = fmt::format("{}", fmt::join(ranks, ","));
  flags[axis] = fmt::format("{}", fmt::join(grown, ","));
  flags[batch_axis] = fmt::format("{}", fmt::join(batches, ","));
}

bool Scaling::has(const harness::PlannedCase& plan) const {
  const auto value = [&](std::string_view name) {
    for (const auto& [axis_name, text] : plan.axes)
      if (axis_name == name) return std::stoi(text);
    return 0;
  };
  return value(axis) * others == plan.ranks &&
         value(batch_axis) == (weak ? batch * plan.ranks / ranks.front() : batch);
}

}  // namespace suite

// A comparison for other programs.

#include <nlohmann/json.hpp>

#include "harness/compare/compare.h"
#include "harness/record/record_json.h"

namespace harness {

using Json = nlohmann::ordered_json;

// nlohmann::json finds these functions by their names.
static void to_json(Json& json, const Difference& d) {
  json = {{"field", d.field}, {"base", d.base}, {"new", d.next}, {"declared", d.declared}};
}
static void to_json(Json& json, const Floor& floor) {
  json = {{"kind", floor.kind}, {"ratio", floor.ratio}, {"reason", floor.reason}};
}
static void to_json(Json& json, const NumberChange& change) {
  json = {{"name", change.name},
          {"number", change.number},
          {"base", change.base},
          {"new", change.next},
          {"unsteady", change.unsteady}};
}
static void to_json(Json& json, const CaseTimes& times) {
  json = {{"name", times.name}, {"unit", times.unit}, {"case", Json::object()}};
  for (const auto& [axis, value] : times.axes) json["case"][axis] = value;
  json["verdict"] = name(times.verdict);
  if (!times.reason.empty()) json["reason"] = times.reason;
  if (times.launches_wanted > 0) json["launches_wanted"] = times.launches_wanted;
  json["ratio"] = times.ratio;
  if (times.interval) json["interval"] = {times.interval->low, times.interval->high};
  json["p"] = times.p;
  json["q"] = times.q;
  json["exact"] = times.exact;
  if (times.detectable) json["detectable"] = *times.detectable;
  json["kind"] = times.kind;
  json["floor"] = times.floor;
  json["base_s"] = times.base;
  json["new_s"] = times.next;
}

std::string json(const RunComparison& comparison) {
  Json json{
      {"schema", "shardmark-compare/1"}, {"comparable", comparison.comparable},
      {"date", comparison.date},         {"labels", {comparison.base_label, comparison.next_label}},
      {"base", comparison.base_paths},   {"new", comparison.next_paths},
      {"notes", comparison.notes},       {"differences", comparison.differences},
      {"mixed", comparison.mixed}};
  if (comparison.comparable) {
    json["level"] = comparison.level;
    for (const TimeVerdict verdict : all_time_verdicts)
      json["counts"][std::string(name(verdict))] = comparison.count(verdict);
    json["counts"]["numbers"] = comparison.changed_numbers();
    json["floors"] = std::vector(floors().begin(), floors().end());
    json["times"] = comparison.times;
    json["numbers"] = comparison.numbers;
    json["numbers_declared"] = comparison.numbers_declared;
    json["untimed"] = Json::array();
    for (const auto& [name, why] : comparison.untimed)
      json["untimed"].push_back({{"name", name}, {"reason", why}});
    json["only_base"] = comparison.only_base;
    json["only_new"] = comparison.only_next;
    json["not_in_all_launches"] = comparison.not_in_all;
  }
  return dumped(json, 1) + "\n";
}

}  // namespace harness

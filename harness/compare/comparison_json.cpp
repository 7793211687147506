// A comparison for other programs.

#include "harness/compare/compare.h"
#include "harness/json/json.h"
#include "harness/record/record_json.h"

namespace harness {
// Json finds these functions by their names.
static Json json_of(const Difference& d) {
  return {{"field", d.field}, {"base", d.base}, {"new", d.next}, {"declared", d.declared}};
}
static Json json_of(const Floor& floor) {
  return {{"kind", floor.kind}, {"ratio", floor.ratio}, {"reason", floor.reason}};
}
static Json json_of(const NumberChange& change) {
  return {{"name", change.name},
          {"number", change.number},
          {"base", change.base},
          {"new", change.next},
          {"unsteady", change.unsteady}};
}
static Json json_of(const CaseTimes& times) {
  Json json{{"name", times.name}, {"unit", times.unit}, {"case", Json::object()}};
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
  return json;
}

template <class T>
static Json list_of(std::span<const T> values) {
  Json list = Json::array();
  for (const T& value : values) list.push_back(json_of(value));
  return list;
}

std::string json(const RunComparison& comparison) {
  Json json{{"schema", "shardmark-compare/1"},
            {"comparable", comparison.comparable},
            {"date", comparison.date},
            {"labels", {comparison.base_label, comparison.next_label}},
            {"base", comparison.base_paths},
            {"new", comparison.next_paths},
            {"notes", comparison.notes},
            {"differences", list_of<Difference>(comparison.differences)},
            {"mixed", comparison.mixed}};
  if (comparison.comparable) {
    json["level"] = comparison.level;
    for (const TimeVerdict verdict : all_time_verdicts)
      json["counts"][std::string(name(verdict))] = comparison.count(verdict);
    json["counts"]["numbers"] = comparison.changed_numbers();
    json["floors"] = list_of<Floor>(floors());
    json["times"] = list_of<CaseTimes>(comparison.times);
    json["numbers"] = list_of<NumberChange>(comparison.numbers);
    json["numbers_declared"] = comparison.numbers_declared;
    json["untimed"] = Json::array();
    for (const auto& [name, why] : comparison.untimed)
      json["untimed"].push_back({{"name", name}, {"reason", why}});
    json["only_base"] = comparison.only_base;
    json["only_new"] = comparison.only_next;
    json["not_in_all_launches"] = comparison.not_in_all;
  }
  return json.dump(1) + "\n";
}

}  // namespace harness

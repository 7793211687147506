#include "harness/compare/compare.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "harness/compare/rank_tests.h"
#include "harness/record/summary.h"
#include "harness/unit/sweep.h"

namespace harness {
namespace {

constexpr Floor floors_by_kind[] = {
    {"step", "long enough to average the disturbances of its parts", 0.01},
    {"computation", "the rate of matrix products varies with clock and temperature", 0.02},
    {"bandwidth", "64 MiB and more: thousands of pieces average out", 0.02},
    {"message", "64 KiB to 64 MiB: the contents of caches and queues differ between launches",
     0.03},
    {"latency", "below 64 KiB: one page fault or wake-up is a relevant part of microseconds", 0.05},
    {"other", "unknown size", 0.02},
};

// A case in the launches of one side.
struct Gathered {
  const Record* first = nullptr;
  std::vector<double> seconds;                              // of the launches that timed it
  std::vector<std::map<std::string, std::string>> numbers;  // of every record
  std::set<std::string> timings;
  std::string untimed;  // the reason why a record has no time
  std::size_t launches = 0;
};

struct Cases {
  std::vector<std::string> order;
  std::map<std::string, Gathered> by_name;
};

AxisValues axes_without(const Record& record, const Factors& factors) {
  AxisValues axes = current_axes(record.axes);
  std::erase_if(axes, [&](const auto& axis) { return factors.name(axis.first); });
  return axes;
}

std::string name_without(const Record& record, const Factors& factors) {
  return case_name(record.unit, axes_without(record, factors));
}

std::string why_untimed(const Record& record) {
  if (record.verdict != Ruling::pass)
    return fmt::format("{}: {}", name(record.verdict), record.reason);
  if (record.oversubscribed) return "ranks shared a GPU";
  return record.seconds > 0 ? "" : "no time";
}

Cases gather(const std::vector<Launch>& launches, std::string_view side, const Factors& factors) {
  Cases cases;
  for (const Launch& launch : launches) {
    std::map<std::string, std::vector<double>> seconds;
    std::map<std::string, std::string> whole_names;
    for (const Record& record : launch.records) {
      const std::string key = name_without(record, factors);
      const auto [whole, is_new] = whole_names.try_emplace(key, record.name);
      if (whole->second != record.name)
        throw UsageError(
            fmt::format("{}: {} and {} are one case without the declared "
                        "axes; run one of them on each side",
                        side, whole->second, record.name));
      Gathered& one = cases.by_name[key];
      if (!one.first) {
        one.first = &record;
        cases.order.push_back(key);
      }
      one.launches += is_new;
      one.numbers.push_back(numbers_of(record));
      const std::string why = why_untimed(record);
      if (why.empty()) {
        seconds[key].push_back(record.seconds);
        one.timings.insert(record.timing);
      } else {
        one.untimed = why;
      }
    }
    for (const auto& [key, values] : seconds) cases.by_name[key].seconds.push_back(median(values));
  }
  return cases;
}

// Returns the distinct values of a number. Skipped records have no values.
std::vector<std::string> values_of(const Gathered& side, const std::string& number) {
  std::vector<std::string> values;
  for (const auto& record : side.numbers) {
    if (number != "verdict" && record.at("verdict") == name(Ruling::skipped)) continue;
    const auto found = record.find(number);
    const std::string value = found == record.end() ? "absent" : found->second;
    if (std::ranges::find(values, value) == values.end()) values.push_back(value);
  }
  return values;
}

// "3.1e-07 | 3.2e-07".
std::string listed(std::vector<std::string> values) {
  constexpr std::size_t few = 4;
  const std::size_t all = values.size();
  if (all > few) values.resize(few);
  return fmt::format("{}{}", fmt::join(values, " | "),
                     all > few ? fmt::format(" | {} more", all - few) : "");
}

void compare_numbers(const std::string& name, const Gathered& base, const Gathered& next,
                     std::vector<NumberChange>& changes) {
  std::set<std::string> numbers;
  for (const Gathered* side : {&base, &next})
    for (const auto& record : side->numbers)
      for (const auto& [number, value] : record) numbers.insert(number);
  const std::vector<std::string> absent{"absent"};
  const bool same_verdict =
      std::ranges::is_permutation(values_of(base, "verdict"), values_of(next, "verdict"));
  for (const std::string& number : numbers) {
    const auto before = values_of(base, number), after = values_of(next, number);
    // A case that failed or was skipped lacks numbers.
    if (!same_verdict && (before.empty() || after.empty() || before == absent || after == absent))
      continue;
    const bool unsteady = before.size() > 1;
    if (!unsteady && before == after) continue;
    changes.push_back({name, number, listed(before), listed(after), unsteady});
  }
}

CaseTimes times_of(const std::string& name, const Gathered& base, const Gathered& next,
                   const CompareOptions& options, const Factors& factors) {
  const Floor& floor = floor_of(*base.first);
  return {.unit = base.first->unit,
          .name = name,
          .axes = axes_without(*base.first, factors),
          .kind = std::string(floor.kind),
          .floor = options.floor.value_or(floor.ratio),
          .base = base.seconds,
          .next = next.seconds};
}

std::vector<double> logarithms(const std::vector<double>& values) {
  std::vector<double> logs;
  for (const double value : values) logs.push_back(std::log(value));
  return logs;
}

void decide(CaseTimes& times, const Shift& shift, double level, int tests) {
  const int n = static_cast<int>(times.base.size()), m = static_cast<int>(times.next.size());
  const double by = shift.estimate(), floor = std::log1p(times.floor);
  times.ratio = std::exp(by);
  const auto interval = shift.interval(level);
  if (interval) times.interval = {std::exp(interval->low), std::exp(interval->high)};
  if (const auto alone = shift.interval(level / tests))
    times.detectable =
        std::max(times.floor, std::expm1(std::max(by - alone->low, alone->high - by)));
  if (times.q <= level && std::abs(by) >= floor) {
    times.verdict = by > 0 ? TimeVerdict::slower : TimeVerdict::faster;
  } else if (interval && interval->low > -floor && interval->high < floor) {
    times.verdict = TimeVerdict::equivalent;
  } else if (!interval) {
    times.reason = fmt::format(
        "too few launches ({} vs {}): p is at least {:.2g}; {} per side can decide one case{}", n,
        m, least_p(n, m), values_needed(level),
        tests == 1
            ? ""
            : fmt::format(", {} one change among {} cases", values_needed(level / tests), tests));
  } else if (std::abs(by) >= floor && !times.detectable) {
    times.reason = fmt::format(
        "too few launches ({} vs {}): p is at least {:.2g}; one change among {} cases needs "
        "{:.2g}, from {} per side",
        n, m, least_p(n, m), tests, level / tests, values_needed(level / tests));
  } else {
    times.reason = "noise: launches differ by more than the relevant change";
    // An interval narrows with the square root of the launches. It must end on one side of the
    // floor.
    const double half = (interval->high - interval->low) / 2;
    const double over = half / std::max(std::abs(floor - std::abs(by)), half * 1e-3);
    times.launches_wanted =
        std::max(std::max(n, m) + 1, static_cast<int>(std::ceil(std::max(n, m) * over * over)));
  }
}

void compare_times(RunComparison& result) {
  std::vector<double> p;
  std::vector<Shift> shifts;
  for (CaseTimes& times : result.times) {
    const std::vector<double> base = logarithms(times.base), next = logarithms(times.next);
    const MannWhitney test = mann_whitney(base, next);
    times.p = test.p;
    times.exact = test.exact;
    p.push_back(test.p);
    shifts.emplace_back(base, next);
  }
  const std::vector<double> q = benjamini_hochberg(p);
  for (std::size_t i = 0; i < q.size(); ++i) {
    result.times[i].q = q[i];
    decide(result.times[i], shifts[i], result.level, static_cast<int>(q.size()));
  }
}

// For two sides without a common case: the axes in which the two most similar cases differ.
std::string nearest_cases(const Cases& base, const Cases& next) {
  std::vector<std::string> least;
  std::string unit;
  for (const auto& [one_name, one] : base.by_name)
    for (const auto& [other_name, other] : next.by_name) {
      if (one.first->unit != other.first->unit) continue;
      std::set<std::string> differ;
      const AxisValues before = current_axes(one.first->axes);
      std::set<std::pair<std::string, std::string>> values(before.begin(), before.end());
      for (const auto& axis : current_axes(other.first->axes))
        if (values.erase(axis) == 0) differ.insert(axis.first);
      for (const auto& axis : values) differ.insert(axis.first);
      if (!unit.empty() && differ.size() >= least.size()) continue;
      unit = one.first->unit;
      least.assign(differ.begin(), differ.end());
    }
  if (unit.empty()) return ", and no common unit";
  return fmt::format(": cases of {} differ at least in {}; --factor {} compares them", unit,
                     fmt::join(least, ", "), fmt::join(least, ","));
}

// Undeclared differences between launches of one side.
std::vector<std::string> mixed(const std::vector<Launch>& launches, std::string_view side,
                               const Factors& factors) {
  std::vector<std::string> lines;
  for (std::size_t i = 1; i < launches.size(); ++i)
    for (const Difference& d : differences(launches[0].fields, launches[i].fields, factors))
      if (!d.declared)
        lines.push_back(fmt::format("{}: {} is {} in {} and {} in {}", side, d.field, d.base,
                                    launches[0].path, d.next, launches[i].path));
  return lines;
}

// Adds a difference if the two sides were timed differently.
void compare_timing(const std::string& name, const Gathered& base, const Gathered& next,
                    const Factors& factors, RunComparison& result) {
  std::set<std::string> both = base.timings;
  both.insert(next.timings.begin(), next.timings.end());
  if (base.seconds.empty() || next.seconds.empty() || both.size() < 2) return;
  for (const Difference& d : result.differences)
    if (d.field == "timing") return;
  result.differences.push_back(
      {"timing", fmt::format("{} ({})", fmt::join(base.timings, ", "), name),
       fmt::format("{}", fmt::join(next.timings, ", ")), factors.name("timing")});
}

}  // namespace

std::span<const Floor> floors() { return floors_by_kind; }

const Floor& floor_of(const Record& record) {
  return *std::ranges::find(floors_by_kind, kind_of_case(record), &Floor::kind);
}

std::string_view name(TimeVerdict verdict) {
  constexpr std::string_view names[] = {"SLOWER", "FASTER", "EQUIVALENT", "INCONCLUSIVE"};
  return names[static_cast<std::size_t>(verdict)];
}

int RunComparison::count(TimeVerdict verdict) const {
  return static_cast<int>(std::ranges::count(times, verdict, &CaseTimes::verdict));
}

int RunComparison::changed_numbers() const {
  return static_cast<int>(std::ranges::count(numbers, false, &NumberChange::unsteady));
}

RunComparison compare(const std::vector<Launch>& base, const std::vector<Launch>& next,
                      const CompareOptions& options) {
  const Factors factors(options.factors);
  std::vector<const Fields*> fields;
  std::set<std::string> others{"numbers", "timing"};
  for (const auto* side : {&base, &next})
    for (const Launch& launch : *side) {
      fields.push_back(&launch.fields);
      for (const Record& record : launch.records)
        for (const auto& [axis, value] : record.axes) others.insert(axis);
    }
  factors.check(fields, others);

  RunComparison result;
  result.level = options.level;
  result.date = next.back().date;
  result.base_label = options.base_label;
  result.next_label = options.next_label;
  result.numbers_declared = factors.name("numbers");
  for (const Launch& launch : base) result.base_paths.push_back(launch.path);
  for (const Launch& launch : next) result.next_paths.push_back(launch.path);
  result.differences = differences(base.at(0).fields, next.at(0).fields, factors);
  for (const auto& [side, launches] :
       {std::pair{options.base_label, &base}, std::pair{options.next_label, &next}})
    for (std::string& line : mixed(*launches, side, factors))
      result.mixed.push_back(std::move(line));

  const Cases before = gather(base, options.base_label, factors),
              after = gather(next, options.next_label, factors);
  for (const std::string& name : before.order) {
    const Gathered& one = before.by_name.at(name);
    const auto other = after.by_name.find(name);
    if (other == after.by_name.end()) {
      result.only_base.push_back(name);
      continue;
    }
    if (one.launches < base.size() || other->second.launches < next.size())
      result.not_in_all.push_back(name);
    compare_timing(name, one, other->second, factors, result);
    compare_numbers(name, one, other->second, result.numbers);
    if (one.seconds.empty() || other->second.seconds.empty())
      result.untimed.emplace_back(name, one.seconds.empty() ? one.untimed : other->second.untimed);
    else
      result.times.push_back(times_of(name, one, other->second, options, factors));
  }
  for (const std::string& name : after.order)
    if (!before.by_name.contains(name)) result.only_next.push_back(name);
  result.comparable =
      result.mixed.empty() &&
      std::ranges::all_of(result.differences, [](const Difference& d) { return d.declared; });
  if (result.comparable && result.only_base.size() == before.order.size())
    throw UsageError(fmt::format("{} and {} have no case in common{}", options.base_label,
                                 options.next_label, nearest_cases(before, after)));
  if (result.comparable) compare_times(result);
  return result;
}

}  // namespace harness

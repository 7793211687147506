#pragma once
// Compares two sides of launches of the same cases: which are slower, faster, equivalent or
// undecided, and which numbers changed.
//
//   RunComparison c = compare(read_launches({"base"}, "BASE", notes), read_launches(…), options);
//   if (!c.comparable) …  // c.differences has the reasons
//   std::fputs(text(c, false).c_str(), stdout);
//
// The time of a case in a launch is the median over iterations of the maximum over ranks (with
// repetitions, their median). Logarithms are compared, so a shift is a ratio.

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "harness/compare/comparable.h"
#include "harness/compare/launches.h"
#include "harness/measure/statistics.h"
#include "harness/unit/sweep.h"

namespace harness {

// slower, faster: q is at most the level and the estimated shift at least the floor. equivalent:
// the interval of this case is within the floor on both sides. inconclusive: neither, because
// launches are too few or too noisy (reason).
enum class TimeVerdict : unsigned char { slower, faster, equivalent, inconclusive };
inline constexpr TimeVerdict all_time_verdicts[] = {
    TimeVerdict::slower, TimeVerdict::faster, TimeVerdict::equivalent, TimeVerdict::inconclusive};
std::string_view name(TimeVerdict verdict);  // "SLOWER"

// A kind of case and the smallest relevant change of its time.
struct Floor {
  std::string_view kind, reason;
  double ratio;  // 0.01: one percent
};
std::span<const Floor> floors();
const Floor& floor_of(const Record& record);

struct CompareOptions {
  double level = 0.05;               // false discovery rate, and of the intervals
  std::optional<double> floor = {};  // of all cases, in place of floors()
  // Fields that may differ. The names of cases omit the axes among them.
  std::vector<std::string> factors = {};
  std::string base_label = "BASE", next_label = "NEW";  // names of the sides in texts
};

struct CaseTimes {
  std::string unit, name;
  AxisValues axes;
  std::string kind;  // of its floor
  double floor = 0;
  std::vector<double> base, next;         // seconds, one per launch
  double ratio = 1;                       // next / base
  std::optional<Interval> interval = {};  // of the ratio; empty: too few launches
  double p = 1, q = 1;  // of this case only; among all cases (Benjamini and Hochberg)
  bool exact = true;
  // The smallest change that these launches would have shown in one case among all: 0.05 is 5 %.
  // Empty: no change.
  std::optional<double> detectable = {};
  TimeVerdict verdict = TimeVerdict::inconclusive;
  std::string reason = {};  // of inconclusive
  int launches_wanted = 0;  // if noise is the reason: approximate launches per side to decide
};

// A number that is constant in BASE and differs in NEW (changed), or that varies in BASE (unsteady,
// so a difference in NEW is inconclusive).
struct NumberChange {
  std::string name, number;
  std::string base, next;  // several values with " | " between, the first ones of many
  bool unsteady = false;
};

struct RunComparison {
  std::string base_label, next_label;
  std::string date;  // of the last launch of NEW
  std::vector<std::string> base_paths, next_paths, notes;
  std::vector<Difference> differences;
  // Undeclared differences between launches of one side.
  std::vector<std::string> mixed;
  bool comparable = false;  // false: the rest is empty

  double level = 0.05;
  std::vector<CaseTimes> times;  // in the order of BASE
  std::vector<NumberChange> numbers;
  bool numbers_declared = false;                             // --factor numbers: they may change
  std::vector<std::pair<std::string, std::string>> untimed;  // case, why
  std::vector<std::string> only_base, only_next;
  std::vector<std::string> not_in_all;  // cases that some launches of a side lack

  int count(TimeVerdict verdict) const;
  int changed_numbers() const;
};

// Throws UsageError for an unknown factor, for a factor axis without which two cases of a side are
// one, and without a common case.
RunComparison compare(const std::vector<Launch>& base, const std::vector<Launch>& next,
                      const CompareOptions& options);

// Returns the console's text, at most 100 columns if names and paths permit. `all`: includes
// unchanged cases.
std::string text(const RunComparison& comparison, bool all);
// schema "shardmark-compare/1".
std::string json(const RunComparison& comparison);

}  // namespace harness

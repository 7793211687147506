#include "harness/record/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

namespace harness {
namespace {

// Three digits, never an exponent: 0.0123, 1.23, 12.3, 1234. The factor counts the digits of the
// rounded value, so that 0.9997 reads 1.00.
std::string three_digits(double value) {
  if (!(value > 0)) return "0";
  const int before = static_cast<int>(std::floor(std::log10(value * 1.0005))) + 1;
  return fmt::format("{:.{}f}", value, std::clamp(3 - before, 0, 6));
}

UnitSummary summarize_unit(const std::string& unit, const std::vector<Record>& records) {
  UnitSummary summary;
  summary.unit = unit;
  const auto merit = [](const Record& record) {
    return std::pair(key_rate(record).value, counter(record, "limit_fraction"));
  };
  for (const Record& record : records) {
    if (record.unit != unit) continue;
    summary.counts.add(record.verdict);
    summary.counts.slow += below_expectation(record);
    if (record.verdict == Ruling::pass && merit(record) > std::pair(0.0, 0.0) &&
        (!summary.best_case || merit(record) > merit(*summary.best_case)))
      summary.best_case = &record;
  }
  if (!summary.best_case) return summary;
  summary.best = rate_text(*summary.best_case);
  summary.wire = wire_text(*summary.best_case);
  summary.limit_fraction = counter(*summary.best_case, "limit_fraction");
  summary.expected_fraction = counter(*summary.best_case, "expected_fraction");
  summary.speedup = speedup_text(*summary.best_case);
  return summary;
}

std::vector<SkipGroup> group_skips(const std::vector<Record>& records) {
  std::vector<SkipGroup> groups;
  for (const Record& record : records) {
    if (record.verdict != Ruling::skipped) continue;
    auto group = std::ranges::find(groups, record.reason, &SkipGroup::reason);
    if (group == groups.end()) group = groups.insert(groups.end(), {record.reason, 0, {}});
    ++group->cases;
    auto unit = std::ranges::find(group->units, record.unit, &std::pair<std::string, int>::first);
    if (unit == group->units.end())
      unit = group->units.insert(group->units.end(), {record.unit, 0});
    ++unit->second;
  }
  std::ranges::stable_sort(groups, std::greater{}, &SkipGroup::cases);
  return groups;
}

std::string why_rejected(const RunContext& context, const Counts& counts, bool no_communication) {
  if (context.status == "aborted") return "aborted: ";
  if (context.status == "interrupted") return "interrupted: ";
  if (context.status == "injected") return "with injected faults: ";
  if (context.status != "complete") return "not finished: ";
  if (counts.failed == 0 && counts.passed == 0) return "nothing passed: ";
  if (counts.failed == 0 && no_communication) return "all communication was skipped: ";
  return "";
}

// Returns the number of passed cases whose numbers no oracle judged.
std::ptrdiff_t passed_without_numerics(const std::vector<Record>& records) {
  return std::ranges::count_if(records, [](const Record& record) {
    const auto numerics =
        std::ranges::find(record.oracles, Oracle::numerics, &OracleResult::oracle);
    return record.verdict == Ruling::pass && numerics != record.oracles.end() &&
           numerics->ruling == Ruling::skipped;
  });
}

}  // namespace

void Counts::add(Ruling ruling) {
  ++(ruling == Ruling::pass ? passed : ruling == Ruling::fail ? failed : skipped);
}

Summary summarize(const RunContext& context, const std::vector<Record>& records) {
  Summary summary;
  std::vector<std::string> units;
  for (const Record& record : records) {
    summary.counts.add(record.verdict);
    summary.counts.slow += below_expectation(record);
    if (std::ranges::find(units, record.unit) == units.end()) units.push_back(record.unit);
  }
  for (const std::string& unit : units) summary.units.push_back(summarize_unit(unit, records));
  summary.skips = group_skips(records);
  const Counts& counts = summary.counts;
  const bool no_communication = skipped_all_communication(records);
  const Gpus& gpus = context.gpus;
  if (counts.failed == 0 && counts.slow == 0 && counts.passed > 0 && !no_communication &&
      context.status == "complete")
    summary.ruling = gpus.is_virtual ? Ruling::skipped : Ruling::pass;
  summary.verdict = summary.ruling == Ruling::pass      ? "ACCEPTED"
                    : summary.ruling == Ruling::skipped ? "PASSED ON VIRTUAL GPUS"
                                                        : "REJECTED";
  summary.details = fmt::format("{}{} passed, {} failed, {} skipped",
                                why_rejected(context, counts, no_communication), counts.passed,
                                counts.failed, counts.skipped);
  if (const std::ptrdiff_t cases = passed_without_numerics(records); cases > 0)
    summary.details +=
        fmt::format("; numerics not judged in {} {}", cases, cases == 1 ? "case" : "cases");
  if (counts.slow > 0)
    summary.details += fmt::format("; {} {} below the expected speed", counts.slow,
                                   counts.slow == 1 ? "case" : "cases");
  if (gpus.is_virtual) summary.details += "; no hardware was tested";
  if (gpus.tested < gpus.seen)
    summary.details +=
        fmt::format("; NOT TESTED: {} of {}{} GPU{}", gpus.seen - gpus.tested, gpus.seen,
                    gpus.is_virtual ? " virtual" : "", gpus.seen == 1 ? "" : "s");
  if (context.not_run > 0)
    summary.details += fmt::format("; {} {} not run (time limit)", context.not_run,
                                   context.not_run == 1 ? "case" : "cases");
  return summary;
}

bool below_expectation(const Record& record) {
  const double expected = counter(record, "expected_s"), floor = counter(record, "expected_floor"),
               least_s = counter(record, "ci_low_s", record.seconds);
  return record.verdict == Ruling::pass && expected > 0 && least_s > 0 &&
         expected / least_s < floor;
}

std::string expectation_text(const Record& record) {
  return fmt::format("{:.0f} % of the expected speed (floor {:.0f} %): {} expected, {} measured",
                     100 * counter(record, "expected_fraction"),
                     100 * counter(record, "expected_floor"),
                     seconds_text(counter(record, "expected_s")), seconds_text(record.seconds));
}

bool skipped_all_communication(const std::vector<Record>& records) {
  bool communicates = false;
  for (const Record& record : records) {
    if (axis(record, "transport").empty() || axis(record, "ranks") == "1") continue;
    communicates = true;
    if (record.verdict != Ruling::skipped) return false;
  }
  return communicates;
}

UnitAxes axes_of(const std::vector<const Axes*>& cases) {
  std::vector<std::string> names;
  std::map<std::string, std::vector<std::string>> values;
  for (const Axes* of_case : cases)
    for (const auto& [axis, value] : *of_case) {
      if (!values.contains(axis)) names.push_back(axis);
      values[axis].push_back(value);
    }
  UnitAxes axes;
  for (const std::string& name : names) {
    const std::vector<std::string>& all = values[name];
    if (std::ranges::count(all, all[0]) == std::ssize(cases))
      axes.fixed.emplace_back(name, all[0]);
    else
      axes.varying.push_back(name);
  }
  return axes;
}

std::string_view kind_of_case(const Record& record) {
  if (counter(record, "tokens_per_second") > 0 || counter(record, "steps_per_second") > 0)
    return "step";
  double size = std::max(counter(record, "bytes"), counter(record, "memory_bytes"));
  if (size == 0 && counter(record, "flops") > 0) return "computation";
  if (size == 0 && counter(record, "messages_expected") > 0)
    size = std::max(1.0, counter(record, "wire_bytes_expected"));
  if (size == 0) return "other";
  return size < 64 << 10 ? "latency" : size < 64 << 20 ? "message" : "bandwidth";
}

Rate key_rate(const Record& record) {
  for (const auto& [key, name] : {std::pair{"steps_per_second", "steps/s"},
                                  {"tokens_per_second", "tokens/s"},
                                  {"busbw_GBps", "GB/s"},
                                  {"algbw_GBps", "GB/s"},
                                  {"pair_GBps", "GB/s"}})
    if (const double rate = counter(record, key); rate > 0) return {rate, name};
  if (const double flops = counter(record, "flops"); flops > 0 && record.seconds > 0)
    return {flops / record.seconds * 1e-9, "GFLOP/s"};
  return {};
}

std::string rate_text(const Rate& rate) {
  if (!(rate.value > 0)) return "";
  using Prefix = std::pair<double, const char*>;
  for (const auto& [factor, prefix] : {Prefix{1e9, "G"}, Prefix{1e6, "M"}, Prefix{1e3, "k"}})
    if (rate.value >= std::max(factor, 1e4))
      return fmt::format("{}{} {}", three_digits(rate.value / factor), prefix, rate.name);
  return fmt::format("{} {}", three_digits(rate.value), rate.name);
}

std::string rate_text(const Record& record) { return rate_text(key_rate(record)); }

std::string speedup_text(const Record& record, std::string_view sign) {
  const double speedup = counter(record, "speedup_over_library");
  if (speedup <= 0) return "";
  return fmt::format("{:.{}f}{}{}", speedup, speedup < 100 ? 2 : 0, sign,
                     record.shares_cores ? "*" : "");
}

std::string wire_text(const Record& record) {
  return rate_text(Rate{counter(record, "wire_GBps"), "GB/s"});
}

std::string mfu_text(const Record& record) {
  const double mfu = counter(record, "mfu"), of_gemm = counter(record, "mfu_of_gemm");
  const bool of_peak = counter(record, "peak_TFLOPs") > 0;
  std::string text;
  if (mfu > 0)
    text = fmt::format("MFU {:.0f} % of the {}", 100 * mfu, of_peak ? "peak" : "measured GEMM");
  if (of_gemm > 0)
    text += fmt::format("{}{:.0f} % of the best GEMM", text.empty() ? "MFU " : ", ", 100 * of_gemm);
  return text;
}

std::string seconds_text(double seconds) {
  if (!(seconds > 0)) return "0 s";
  // The unit is chosen after rounding, so that 999.7 us reads 1.00 ms.
  for (const auto& [unit, name] : {std::pair{1e-9, "ns"}, {1e-6, "us"}, {1e-3, "ms"}})
    if (seconds / unit < 999.5) return fmt::format("{} {}", three_digits(seconds / unit), name);
  return fmt::format("{} s", three_digits(seconds));
}

std::string duration_text(double seconds) {
  const auto whole = std::lround(std::max(0.0, seconds));
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min {} s", whole / 60, whole % 60);
  return fmt::format("{} h {} min", whole / 3600, whole % 3600 / 60);
}

std::string pair_text(const LinkMatrix& matrix, const LinkMatrix::SlowPair& pair) {
  return fmt::format("{} ({}) to {} ({}) {} {} of {} {}", pair.from,
                     matrix.hosts.at(static_cast<std::size_t>(pair.from)), pair.to,
                     matrix.hosts.at(static_cast<std::size_t>(pair.to)), pair.metric,
                     three_digits(pair.value), three_digits(pair.typical),
                     pair.metric == "bandwidth" ? "GB/s" : "us");
}

std::string plain(std::string_view text) {
  std::string clean(text);
  for (char& c : clean)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  return clean;
}

std::vector<std::string> failure_lines(const Record& record) {
  std::vector<std::string> lines;
  if (!record.reason.empty()) lines.push_back(plain(record.reason));
  for (const OracleResult& result : record.oracles) {
    if (result.ruling != Ruling::fail) continue;
    if (result.text.empty() || record.reason.find(result.text) != std::string::npos) continue;
    lines.push_back(fmt::format("{}: {}", name(result.oracle), plain(result.text)));
  }
  return lines;
}

}  // namespace harness

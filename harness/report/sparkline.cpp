#include "harness/report/sparkline.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "harness/record/summary.h"
#include "harness/report/page_parts.h"

namespace harness {
namespace {

constexpr double width = 96, height = 24, margin = 3;
constexpr std::size_t fewest_sizes = 2;

double size_of(const Record& record) {
  for (const char* key : {"bytes", "memory_bytes", "flops"})
    if (const double size = counter(record, key); size > 0) return size;
  return 0;
}

std::string size_text(double size, bool bytes) {
  constexpr const char* binary[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  constexpr const char* decimal[] = {"FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP"};
  std::size_t unit = 0;
  for (const double step = bytes ? 1024 : 1000; size >= step && unit < 4; ++unit) size /= step;
  return fmt::format("{:.3g} {}", size, bytes ? binary[unit] : decimal[unit]);
}

// Returns the axes of a case that are not sizes: words, and the number of ranks. Sizes are values
// such as "4096" and "256x64".
std::string series_of(const Record& record) {
  std::string key;
  for (const auto& [axis, value] : record.axes)
    if (axis == "ranks" || value.find_first_not_of("0123456789x") != std::string::npos)
      key += axis + ":" + value + "/";
  return key;
}

using Series = std::map<double, const Record*>;  // by size, the fastest

struct Scale {
  double low, high;
  double operator()(double value) const {
    return high > low ? std::log(value / low) / std::log(high / low) : 0.5;
  }
};

}  // namespace

std::string sparkline(const std::vector<const Record*>& records, const Record* best) {
  const bool of_rates = best && key_rate(*best).value > 0;
  const auto value = [&](const Record& record) {
    return of_rates ? key_rate(record).value : record.seconds;
  };
  std::map<std::string, Series> all;
  for (const Record* record : records) {
    const double size = size_of(*record);
    if (record->verdict != Ruling::pass || size <= 0 || value(*record) <= 0) continue;
    const Record*& kept = all[series_of(*record)][size];
    if (!kept || (of_rates ? value(*record) > value(*kept) : value(*record) < value(*kept)))
      kept = record;
  }
  const auto sizes = [](const auto& one) { return one.second.size(); };
  auto chosen = best ? all.find(series_of(*best)) : all.end();
  if (chosen == all.end() || sizes(*chosen) < fewest_sizes)
    chosen = std::ranges::max_element(all, {}, sizes);
  if (chosen == all.end() || sizes(*chosen) < fewest_sizes) return "";
  const Series& series = chosen->second;
  const auto [low, high] = std::ranges::minmax_element(
      series, {}, [&](const auto& point) { return value(*point.second); });
  const Scale across{series.begin()->first, series.rbegin()->first};
  const Scale up{value(*low->second), value(*high->second)};
  std::string points, dot;
  for (const auto& [size, record] : series) {
    const double x = margin + (width - 2 * margin) * across(size);
    const double y = height - margin - (height - 2 * margin) * up(value(*record));
    points += fmt::format("{}{:.1f},{:.1f}", points.empty() ? "" : " ", x, y);
    if (record == best) dot = fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.2\"/>", x, y);
  }
  const auto text = [&](const Series::value_type& point) {
    const std::string number =
        of_rates ? rate_text(*point.second) : html_seconds(point.second->seconds);
    return fmt::format("{} at {}", number,
                       size_text(point.first, counter(*point.second, "bytes") > 0 ||
                                                  counter(*point.second, "memory_bytes") > 0));
  };
  return fmt::format(
      "<svg class=\"spark\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" role=\"img\" "
      "aria-label=\"{2}: {3} to {4}\"><title>{2}: {3} to {4}</title><polyline "
      "points=\"{5}\"/>{6}</svg>",
      width, height, of_rates ? "rate" : "time", text(*series.begin()), text(*series.rbegin()),
      points, dot);
}

}  // namespace harness

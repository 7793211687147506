#include "suite/expectation/compared_runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "harness/record/summary.h"

namespace suite {
namespace {

using harness::Record;

std::map<std::string, std::vector<const ComparedCase*>> by_kind(
    const std::vector<ComparedCase>& cases) {
  std::map<std::string, std::vector<const ComparedCase*>> kinds;
  for (const ComparedCase& one : cases) kinds[one.kind].push_back(&one);
  return kinds;
}

}  // namespace

std::vector<ComparedCase> compare_runs(const std::vector<Record>& records,
                                       const Expectation& expectation) {
  std::vector<ComparedCase> cases;
  for (const Record& record : records) {
    if (record.verdict != harness::Ruling::pass || record.seconds <= 0) continue;
    if (record.oversubscribed || record.shares_cores) continue;
    const double predicted = expectation.promise(record).expected_s;
    if (predicted > 0)
      cases.push_back(
          {record.name, std::string(harness::kind_of_case(record)), record.seconds, predicted});
  }
  return cases;
}

std::string text(const std::vector<ComparedCase>& cases) {
  std::string out;
  const auto kinds = by_kind(cases);
  if (const auto steps = kinds.find("step"); steps != kinds.end()) {
    out += fmt::format("{:>12} {:>12} {:>9}  step\n", "measured s", "predicted s", "error");
    for (const ComparedCase* one : steps->second)
      out += fmt::format("{:12.4g} {:12.4g} {:+7.1f} %  {}\n", one->measured_s, one->predicted_s,
                         100 * one->error(), one->name);
    out += "\n";
  }
  for (const auto& [kind, of_kind] : kinds) {
    double sum = 0;
    const ComparedCase* worst = of_kind.front();
    for (const ComparedCase* one : of_kind) {
      sum += std::abs(one->error());
      if (std::abs(one->error()) > std::abs(worst->error())) worst = one;
    }
    out += fmt::format("{}, {} cases: mean absolute error {:.1f} %, worst {:+.1f} % ({})\n", kind,
                       of_kind.size(), 100 * sum / static_cast<double>(of_kind.size()),
                       100 * worst->error(), worst->name);
  }
  return out;
}

std::vector<predict::ScalingFigure> figures(const std::vector<ComparedCase>& cases) {
  std::vector<ComparedCase> steps = cases;
  std::erase_if(steps, [](const ComparedCase& one) { return one.kind != "step"; });
  if (steps.size() < 2) return {};
  std::ranges::sort(steps, {}, &ComparedCase::measured_s);
  predict::ScalingFigure figure{
      .name = "measured_steps",
      .title = "Measured and predicted steps",
      .caption = fmt::format("The {} steps of runs, by measured time.", steps.size()),
      .x = {"step", false},
      .y = {"time of a step [ms]", true},
      .lines = {}};
  predict::ScalingFigure::Line measured{"measured", {}, {}}, predicted{"predicted", {}, {}};
  for (const ComparedCase& one : steps) {
    for (predict::ScalingFigure::Line* line : {&measured, &predicted})
      line->x.push_back(static_cast<double>(line->x.size() + 1));
    measured.y.push_back(1e3 * one.measured_s);
    predicted.y.push_back(1e3 * one.predicted_s);
  }
  figure.lines = {std::move(measured), std::move(predicted)};
  return {std::move(figure)};
}

}  // namespace suite

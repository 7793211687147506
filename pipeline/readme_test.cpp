// The drawings of all schedules in pipeline/README.md.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "machine/testing/generated_section.h"
#include "pipeline/simulate.h"

namespace pipeline {
namespace {

constexpr int widest = 108;

// Draws one line per stage. An action is its letter and number, then '=' until its end. '.' marks
// idle time.
std::string draw(const Simulation& simulation, int columns_per_second) {
  const auto column = [&](double seconds) {
    return static_cast<std::size_t>(std::lround(seconds * columns_per_second));
  };
  std::string page;
  for (std::size_t stage = 0; stage < simulation.stages.size(); ++stage) {
    std::string line(column(simulation.makespan_s), '.');
    for (const Event& event : simulation.stages[stage]) {
      if (event.doing != Doing::compute) continue;
      std::string cell = text(event.action);
      cell.resize(column(event.seconds()), '=');
      line.replace(column(event.start_s), cell.size(), cell);
    }
    page += fmt::format("stage {} |{}|\n", stage, line);
  }
  return page;
}

std::string drawing(const Schedule& schedule, int micro_batches) {
  const Size size{.stages = 4, .micro_batches = micro_batches, .chunks = schedule.chunks};
  const Simulation simulation = simulate(schedule, size, Costs{});
  const int seconds = static_cast<int>(simulation.makespan_s), columns = widest / seconds;
  // An action's letter and number take two columns.
  if (columns < 2) return drawing(schedule, micro_batches / 2);
  int peak = 0;
  for (const StageSchedule& stage : all_stages(schedule, size))
    peak = std::max(peak, peak_activations(stage));
  return fmt::format(
      "`{}`: {}. {} micro-batches, peak {}, idle {:.1f} % of the step.\n\n```\n{}```\n",
      schedule.name, schedule.source, micro_batches, peak, 100 * simulation.bubble(0).of_total,
      draw(simulation, columns));
}

TEST(Readme, DrawingsMatchTheSchedules) {
  std::string page;
  for (const Schedule& schedule : schedules())
    page += (page.empty() ? "" : "\n") + drawing(schedule, 8);
  machine::testing::expect_generated_section(SHARDMARK_ROOM_README, "schedules", page);
}

}  // namespace
}  // namespace pipeline

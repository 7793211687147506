// Findings from the driver's facts on the ranks' GPUs before and after a run.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "harness/diagnose/findings.h"
#include "harness/json/json.h"
#include "machine/device/gpu_health.h"

namespace harness {
namespace {
// Shorter slowdowns do not show in a measurement.
constexpr std::int64_t relevant_slowdown_ns = 1'000'000'000;

// A GPU, and the ranks that computed on it.
struct Gpu {
  std::vector<int> ranks;
  Json before, after;

  std::optional<std::int64_t> now(const char* fact) const {
    const Json* const found = after.find(fact);
    if (found == nullptr || !found->is_number_integer()) return std::nullopt;
    return found->get<std::int64_t>();
  }
  bool is_set(const char* fact) const { return now(fact).value_or(0) > 0; }
  // Returns how much a counter has grown; 0 if it is absent. A reset of the GPU sets counters to 0.
  std::int64_t growth(const char* fact) const {
    const Json* const first = before.find(fact);
    if (first == nullptr || !first->is_number_integer()) return 0;
    return now(fact).value_or(0) - first->get<std::int64_t>();
  }
};

// Ranks that share a GPU read the same.
std::vector<Gpu> gpus_of(const Json& launch) {
  std::vector<Gpu> gpus;
  for (const Json& rank : launch) {
    const Json before = rank.value("before", Json::object()),
               after = rank.value("after", Json::object());
    const std::string uuid = before.value("uuid", "");
    const auto known = std::ranges::find_if(gpus, [&](const Gpu& gpu) {
      return !uuid.empty() && gpu.before.value("uuid", "") == uuid;
    });
    if (known == gpus.end())
      gpus.push_back({{rank.value("rank", 0)}, before, after});
    else
      known->ranks.push_back(rank.value("rank", 0));
  }
  return gpus;
}

std::string number_of(std::int64_t count, const char* noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

void find_memory(const Gpu& gpu, Findings& findings) {
  const auto add = [&](Level level, const std::string& text) {
    findings.add(level, "GPU memory", gpu.ranks, text);
  };
  if (const auto errors =
          std::max(gpu.growth("ecc_uncorrected_volatile"), gpu.growth("ecc_uncorrected_aggregate"));
      errors > 0)
    add(Level::critical, number_of(errors, "uncorrected memory (ECC) error") + " during the run");
  const auto rows = gpu.growth("rows_remapped_uncorrected") + gpu.growth("rows_remapped_corrected");
  if (rows > 0)
    add(Level::warning, number_of(rows, "row") + " of its memory remapped during the run");
  if (const auto pages = gpu.growth("pages_retired"); pages > 0)
    add(Level::warning, number_of(pages, "page") + " of its memory retired during the run");
  if (gpu.is_set("row_remap_failed"))
    add(Level::critical, "a row of its memory could not be remapped; replace the GPU");
  else if (gpu.is_set("row_remap_pending"))
    add(Level::warning, "a row of its memory is remapped at the next reset; reset the GPU");
}

void find_slowdown(const Gpu& gpu, Findings& findings) {
  const std::int64_t reasons = gpu.now("throttle_reasons").value_or(0);
  const std::int64_t hot_ns = gpu.growth("thermal_slowdown_ns");
  std::vector<std::string> causes;
  if ((reasons & machine::slowed_by_heat) != 0 || hot_ns >= relevant_slowdown_ns)
    causes.push_back(hot_ns > 0 ? fmt::format("heat ({:.1f} s)", static_cast<double>(hot_ns) * 1e-9)
                                : "heat");
  if ((reasons & machine::slowed_by_power_brake) != 0) causes.emplace_back("the power supply");
  if (causes.empty()) return;
  std::string text = fmt::format("its clock was lowered by {}", fmt::join(causes, " and "));
  if (const auto temperature = gpu.now("temperature_C"))
    text += fmt::format("; {} degrees C after the run", *temperature);
  if (const auto clock = gpu.now("clock_sm_mhz"), most = gpu.now("clock_sm_max_mhz"); clock && most)
    text += fmt::format(", {} of {} MHz", *clock, *most);
  findings.add(Level::warning, "slowed GPU", gpu.ranks, text);
}

// Some boards connect only a part of their NVLinks, so the links of the other GPUs count.
void find_links(const Gpu& gpu, std::int64_t most_active, Findings& findings) {
  if (const auto lanes = gpu.now("pcie_lanes"), most = gpu.now("pcie_lanes_max");
      lanes && most && *lanes < *most)
    findings.add(Level::warning, "narrow PCIe", gpu.ranks,
                 fmt::format("{} of {} lanes in use", *lanes, *most));
  const auto active = gpu.now("nvlinks_active");
  const std::int64_t expected =
      std::max(most_active, active.value_or(0) - gpu.growth("nvlinks_active"));
  if (active && *active < expected)
    findings.add(Level::warning, "inactive NVLink", gpu.ranks,
                 fmt::format("{} of {} active, {}", *active, number_of(expected, "link"),
                             gpu.growth("nvlinks_active") < 0 ? "fewer than before the run"
                                                              : "fewer than on another GPU"));
}

}  // namespace

void find_failing_gpus(const Json& environment, Findings& findings) {
  for (const Json& launch : environment.value("gpu_health", Json::array())) {
    const std::vector<Gpu> gpus = gpus_of(launch);
    std::int64_t most_active = 0;
    for (const Gpu& gpu : gpus)
      most_active = std::max(most_active, gpu.now("nvlinks_active").value_or(0));
    for (const Gpu& gpu : gpus) {
      if (const std::string why = gpu.after.value("unreachable", ""); !why.empty()) {
        findings.add(Level::critical, "lost GPU", gpu.ranks,
                     fmt::format("the driver does not reach it: {}", why));
        continue;
      }
      find_memory(gpu, findings);
      find_slowdown(gpu, findings);
      find_links(gpu, most_active, findings);
    }
  }
}

}  // namespace harness

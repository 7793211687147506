#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <cmath>
#include <ctime>
#include <filesystem>

#include "harness/fingerprint/build_info.h"
#include "harness/json/json.h"
#include "harness/record/record_json.h"

namespace harness {
namespace {

std::string now_rfc3339() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char text[32], zone[8];
  std::strftime(text, sizeof text, "%FT%T", &local);
  std::strftime(zone, sizeof zone, "%z", &local);  // "+0130"
  return fmt::format("{}{:.3}:{}", text, zone, zone + 3);
}

}  // namespace

Json machine_context(std::string_view schema) {
  const benchmark::CPUInfo& cpu = benchmark::CPUInfo::Get();
  std::error_code ignored;
  Json json{{"date", now_rfc3339()},
            {"host_name", benchmark::SystemInfo::Get().name},
            {"executable", std::filesystem::read_symlink("/proc/self/exe", ignored).string()},
            {"num_cpus", cpu.num_cpus},
            {"mhz_per_cpu", std::lround(cpu.cycles_per_second / 1e6)}};
  if (cpu.scaling != benchmark::CPUInfo::UNKNOWN)
    json["cpu_scaling_enabled"] = cpu.scaling == benchmark::CPUInfo::ENABLED;
  auto& caches = json["caches"] = Json::array();
  for (const auto& cache : cpu.caches)
    caches.push_back({{"type", cache.type},
                      {"level", cache.level},
                      {"size", cache.size},
                      {"num_sharing", cache.num_sharing}});
  json["load_avg"] = cpu.load_avg;
  // The build type of this program, which is the timed code.
  json["library_build_type"] = build_info().optimized ? "release" : "debug";
  json["schema"] = schema;
  json["shardmark_version"] = build_info().version;
  return json;
}

}  // namespace harness

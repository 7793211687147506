#include "harness/record/machine_context.h"

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <cmath>
#include <ctime>
#include <filesystem>

#include "harness/fingerprint/build_info.h"
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

std::string caches_json(const benchmark::CPUInfo& cpu) {
  std::string text;
  for (const auto& cache : cpu.caches)
    text += fmt::format(
        "{}\n      {{\"type\": {}, \"level\": {}, \"size\": {}, \"num_sharing\": {}}}",
        text.empty() ? "" : ",", json_text(cache.type), cache.level, cache.size, cache.num_sharing);
  return text.empty() ? "[]" : "[" + text + "\n    ]";
}

}  // namespace

std::string machine_context(std::string_view schema) {
  const benchmark::CPUInfo& cpu = benchmark::CPUInfo::Get();
  std::error_code ignored;
  const std::string executable = std::filesystem::read_symlink("/proc/self/exe", ignored).string();
  std::string text;
  const auto line = [&](std::string_view key, const std::string& value) {
    text += fmt::format("{}    \"{}\": {}", text.empty() ? "" : ",\n", key, value);
  };
  line("date", json_text(now_rfc3339()));
  line("host_name", json_text(benchmark::SystemInfo::Get().name));
  line("executable", json_text(executable));
  line("num_cpus", std::to_string(cpu.num_cpus));
  line("mhz_per_cpu", std::to_string(std::lround(cpu.cycles_per_second / 1e6)));
  if (cpu.scaling != benchmark::CPUInfo::UNKNOWN)
    line("cpu_scaling_enabled", cpu.scaling == benchmark::CPUInfo::ENABLED ? "true" : "false");
  line("caches", caches_json(cpu));
  line("load_avg", fmt::format("[{}]", fmt::join(cpu.load_avg, ", ")));
  // Of our own code, which is what was timed.
  line("library_build_type", json_text(build_info().optimized ? "release" : "debug"));
  line("schema", json_text(schema));
  line("shardmark_version", json_text(build_info().version));
  return text;
}

}  // namespace harness

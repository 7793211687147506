#include "suite/nccl_tests/json.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "harness/json/json.h"
#include "machine/base/error.h"

namespace suite::nccl_tests {
namespace {
using harness::Json;

std::string truth(bool value) { return value ? "true" : "false"; }

Json configuration(const Report& report) {
  const Arguments& a = report.arguments;
  Json config;
  config["nthreads"] = a.threads;
  config["ngpus"] = a.gpus;
  config["minimum_bytes"] = a.min_bytes;
  config["maximum_bytes"] = a.max_bytes;
  const bool factor = a.step_factor > 1;
  config[factor ? "step_factor" : "step_bytes"] = factor ? a.step_factor : a.step_bytes;
  config["warmup_iters"] = a.warm_up;
  config["iterations"] = a.iterations;
  config["aggregated_iterations"] = a.aggregated;
  config["validation"] = a.checks;
  config["graph"] = a.graph_launches;
  config["blocking_collectives"] = truth(a.blocking != Blocking::no);
  config["per_iter_timing"] = truth(a.per_iteration);
  config["per_iter_skip"] = a.skipped;
  config["parallel_init"] = truth(a.parallel_init != 0);
  config["devices"] = Json::array();
  for (const RankLine& rank : report.ranks)
    config["devices"].push_back({{"rank", rank.rank},
                                 {"group", 0},
                                 {"pid", rank.pid},
                                 {"hostname", rank.host},
                                 {"device", 0},
                                 {"device_hex", "host"},
                                 {"device_info", rank.device}});
  return config;
}

Json timing(const Arguments& arguments, const std::optional<Timing>& measured) {
  if (!measured) return nullptr;
  Json result;
  result[arguments.cpu_time ? "cpu_time" : "time"] = measured->microseconds;
  if (measured->device_microseconds) result["device_time"] = *measured->device_microseconds;
  result["alg_bw"] = measured->algbw_GBps;
  result["bus_bw"] = measured->busbw_GBps;
  result["nwrong"] = measured->wrong ? Json(*measured->wrong) : Json(nullptr);
  if (!measured->wrong_where.empty()) result["wrong_where"] = measured->wrong_where;
  return result;
}

Json per_iteration(const IterationTimes& times, int skipped) {
  const IterationSummary s = summary(times, skipped);
  Json result{{"skipped_iterations", skipped},
              {"min_us", s.minimum},
              {"max_us", s.maximum},
              {"avg_us", s.average},
              {"p50_us", s.p50},
              {"p95_us", s.p95},
              {"p99_us", s.p99},
              {"stdev_us", s.deviation},
              {"cv_pct", s.variation_percent},
              {"times_us", times.maxima_us}};
  if (times.by_rank_us.size() > 1) result["per_process_max_times_us"] = times.by_rank_us;
  return result;
}

Json result(const Arguments& arguments, const Row& row) {
  Json result{{"size", row.extent.bytes},
              {"count", row.extent.count},
              {"type", std::string(name(row.dtype))},
              {"redop", row.reduction},
              {"root", fmt::format("{:6}", row.root)},
              {"algorithm", row.algorithm}};
  const auto add = [&](const char* key, const std::optional<Timing>& measured) {
    result[key] = timing(arguments, measured);
    if (measured && measured->iterations)
      result[std::string(key) + "_per_iter"] =
          per_iteration(*measured->iterations, arguments.skipped);
  };
  add("out_of_place", row.out_of_place);
  add("in_place", row.in_place);
  result["actual_iterations"] = arguments.iterations;
  result["experiment_name"] = "";
  return result;
}

}  // namespace

std::string json(const Report& report) {
  const Totals& totals = report.totals;
  Json document;
  document["version"] = 3;
  document["start_time"] = report.start_time;
  document["args"] = report.command;
  document["env"] = report.environment;
  document["nccl_version"] = nullptr;
  document["config"] = configuration(report);
  document["results"] = Json::array();
  for (const Row& row : report.rows) document["results"].push_back(result(report.arguments, row));
  document["out_of_bounds"] = {{"count", totals.out_of_bounds},
                               {"okay", truth(totals.out_of_bounds == 0)}};
  document["average_bus_bandwidth"] = {
      {"bandwidth", totals.average_busbw()},
      {"okay", totals.least_busbw ? truth(totals.enough_busbw()) : "unchecked"}};
  document["errors"] = Json::array();
  document["shardmark"] = {{"version", report.version},
                           {"operation", std::string(name(report.arguments.operation))},
                           {"ranks", report.ranks.size()},
                           {"transport", report.transport},
                           {"notes", report.arguments.notes}};
  document["end_time"] = report.end_time;
  return document.dump(1) + "\n";
}

std::string claim_file(const std::string& path) {
  std::string attempt = path;
  for (int number = 0;; ++number) {
    const int file = ::open(attempt.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file >= 0) {
      ::close(file);
      return attempt;
    }
    if (errno != EEXIST)
      throw machine::MachineError(
          fmt::format("cannot write {}: {}", attempt, std::strerror(errno)));
    attempt = fmt::format("{}.{}", path, number);
  }
}

void replace_file(const std::string& path, std::string_view text) {
  const std::string beside = path + ".part";
  std::ofstream file(beside, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  std::error_code error;
  if (file) std::filesystem::rename(beside, path, error);
  if (!file || error)
    throw machine::MachineError(
        fmt::format("cannot write {}: {}", path, error ? error.message() : std::strerror(errno)));
}

}  // namespace suite::nccl_tests

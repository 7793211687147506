#pragma once
// Run directories for the tests of comparisons: two ranks on one host, a few cases.

#include <functional>
#include <string>
#include <vector>

#include "harness/record/run_json.h"
#include "harness/testing/test_folder.h"
#include "harness/unit/sweep.h"

namespace harness {

inline Record timed_case(const std::string& bytes, double seconds,
                         const std::string& dtype = "float") {
  Record record;
  record.unit = "all_reduce";
  record.axes = {{"algorithm", "ring"}, {"dtype", dtype}, {"bytes", bytes}};
  record.name = record.unit;
  for (const auto& [axis, value] : record.axes) record.name += "/" + axis + ":" + value;
  record.verdict = Ruling::pass;
  record.seconds = seconds;
  record.timing = "sample";
  record.fingerprint = "00c0ffee00c0ffee";
  record.samples.ranks = 2;
  record.samples.seconds.assign(8, seconds);
  record.counters = {{"bytes", std::stod(bytes)},
                     {"max_error", 3.1e-7},
                     {"wire_bytes_measured", 2 * std::stod(bytes)},
                     {"busbw_GBps", std::stod(bytes) / seconds * 1e-9}};
  return record;
}

inline constexpr std::string_view example_environment =
    R"({"same_on_all_ranks": {"host": "node-a",
    "hardware": {"cpu": "EPYC", "cores": 2},
    "software": {"kernel": "Linux 6.1", "nccl": {"header": "2.28.3", "loaded": "2.28.3"}},
    "environment": {"NCCL_ALGO": "Ring", "SLURM_JOB_ID": "77"}},
  "differences": ["binding"],
  "ranks": [{"rank": 0, "binding": "0"}, {"rank": 1, "binding": "1"}]})";

class RunFolder : public TestFolder {
 public:
  // Writes a complete run. In its fingerprint, `to` replaces `from`.
  std::string run(const std::string& name, const std::vector<Record>& records,
                  const std::string& from = "", const std::string& to = "") const {
    RunContext context;
    context.command = "shardmark run";
    {
      RunWriter writer(context, path(name));
      for (const Record& record : records) writer.add(record);
      context.status = "complete";
      writer.finish(context);
    }
    std::string environment(example_environment);
    if (!from.empty()) environment.replace(environment.find(from), from.size(), to);
    put(name + "/environment.json", environment);
    return path(name);
  }
};

// Returns the message of the call's UsageError.
inline std::string refused(const std::function<void()>& call) {
  try {
    call();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no UsageError";
}

}  // namespace harness

#pragma once
// Records for the tests of code that writes or shows them. Every field is set, with awkward values.

#include <random>
#include <string>

#include "harness/record/record.h"
#include "harness/record/record_json.h"

namespace harness {

inline Record example_record(int number, Ruling verdict = Ruling::pass) {
  std::mt19937_64 random(static_cast<unsigned>(number) + 17);
  std::uniform_real_distribution<double> around(0.5, 1.5);
  Record record;
  record.unit = number % 3 == 2 ? "gemm" : "all_reduce";
  record.axes = {{"algorithm", "ring"},
                 {"dtype", "float"},
                 {"ranks", "3"},
                 {"bytes", std::to_string(8 + number)}};
  record.slice = number % 2 == 0 ? "sizes" : "edges";
  record.name = record.unit;
  for (const auto& [axis, value] : record.axes) record.name += "/" + axis + ":" + value;
  record.verdict = verdict;
  if (verdict == Ruling::skipped) {
    record.reason = "needs 4 GPUs, found 0";
    return record;
  }
  if (verdict == Ruling::fail) {
    record.failure = machine::Failure{
        .kind = machine::Failure::Kind::wrong_result, .rank = 2, .peer = 0, .sample = 7};
    record.reason = "numerics: rank 2: \"x\" <b>\xc3\xa9</b> & y, error 0.1, bound 0.01";
  }
  record.oracles = {
      {Oracle::numerics, verdict, 3.1e-7 * around(random), 1.9e-6, "rank 2: sum, element 5"},
      {Oracle::volume, Ruling::pass, 4096, 4096, "world all_reduce float", Reference::shared}};
  record.traits = Traits{true, number % 2 == 0, false};
  record.seconds = 1e-4 * around(random);
  record.cpu_seconds = 2e-4 * around(random);
  record.quantiles = {0.6e-4, 0.7e-4, 0.8e-4, record.seconds, 1.2e-4, 1.4e-4, 1.5e-4};
  record.note = "auto: ring, 1.50 times as fast as direct";
  record.fingerprint = "00c0ffee00c0ffee";
  record.timing = "loop";
  record.oversubscribed = true;
  record.shares_cores = true;
  record.stop = "converged";
  record.samples.ranks = 3;
  for (int i = 0; i < 3 * 35; ++i) record.samples.seconds.push_back(1e-4 * around(random));
  record.counters = {
      {"bytes", 8.0 + number},     {"busbw_GBps", 3.3 * around(random)},     {"wire_GBps", 0.75},
      {"overlap_fraction", -0.25}, {"limit_fraction", 0.7 * around(random)}, {"samples", 35},
      {"slowest_rank", 2}};
  record.memory = {{"parameters", 4096, 4096}, {"gradients", 123456789012345, 123456789012345}};
  record.breakdown = {{"forward", 0.3e-4}, {"backward", 0.6e-4 * around(random)}};
  record.step_breakdown = {{"forward", "other"},
                           {"communication dp"},
                           {{0.5, 0.25}, {0.5, 0.125}},
                           {{0.0625}, {0}},
                           {{0, 0.25}, {0, 0}}};
  record.trace = {{0, "compute", "forward", 0, 1e-5}, {1, "progress", "all \"q\"", 0, 2e-5}};
  record.timeline = {{0, "compute", "F0", 0, 1e-5}, {1, "link", "send", 1e-5, 2.5e-5}};
  record.losses = {4.5 * around(random), 4.25, 4.125};
  record.link_matrix = {{"node-a", "node-a", "node \"b\""},
                        {0, 9.5, 3, 9.25, 0, 0.5 * around(random), 3, 3, 0},
                        {0, 0.25, 2, 0.25, 0, 8 * around(random), 2, 2, 0},
                        {"node-a"},
                        {{1, 2, "bandwidth", 0.5, 3, 17.5}}};
  record.memory_maps = {{"ends", 4096, 3, 0, 0, 0, {{"activations", 512, 1024, 0, 2}}},
                        {"fails", 2048, 9, 1536, 1600, 512, {{"gradients", 0, 448, 1, 9}}}};
  return record;
}

// Returns a run.json of four of these records.
inline std::string example_run() {
  std::string text = R"({"context": {"date": "2026-11-22T01:02:03+00:00", "host_name": "node-a",
    "mhz_per_cpu": 2596, "caches": [{"type": "Data", "level": 1, "size": 32768, "num_sharing": 2}],
    "schema": "shardmark-run/2", "profile": "quick", "command": "shardmark run",
    "configuration": {"keys": {"train_batch_size": {"value": 8, "origin": "x"}}, "warnings": []},
    "status": "complete", "status_reason": "", "rates": {"copy_GBps/ranks:2/bytes:1024": 12.5}},
    "benchmarks": [)";
  std::uint64_t offset = 0;
  for (int i = 0; i < 4; ++i) {
    using enum Ruling;
    const Record record = example_record(i, i == 1 ? fail : i == 3 ? skipped : pass);
    text += (i > 0 ? ",\n" : "\n") + record_json(record, {0, i, 1, offset});
    offset += record.samples.seconds.size() * sizeof(double);
  }
  return text + "]}";
}

}  // namespace harness

#pragma once
// Runs units on threads, for tests. Processes run the same code. On threads, sanitizers see all
// ranks. Times are meaningless, but the oracles must pass.

#include <stdexcept>
#include <string>
#include <vector>

#include "harness/run/run.h"
#include "harness/unit/unit.h"
#include "machine/world/world.h"

namespace suite::on_threads {

// Sanitizers slow the code down tenfold, so sanitized tests shard the same work in fewer ways.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool sanitized = true;
#else
inline constexpr bool sanitized = false;
#endif

class Records final : public harness::Sink, public harness::Progress {
 public:
  void add(const harness::Record& record) override { records.push_back(record); }
  void finish(const harness::RunContext&) override {}
  void start(std::size_t) override {}
  void case_started(const std::string&) override {}
  void case_done(const harness::Record&) override {}
  void finish(const harness::RunContext&, const std::vector<harness::Record>&) override {}
  std::vector<harness::Record> records;
};

// cuda_devices: the CUDA devices that the ranks use in turn; 0: host memory.
inline std::vector<harness::Record> run(const std::vector<harness::PlannedCase>& cases, int ranks,
                                        double seconds = 0.02,
                                        const harness::RunOptions& given = {},
                                        int cuda_devices = 0) {
  Records records;
  machine::run_ranks(ranks, [&](machine::World& world) {
    if (cuda_devices > 0) {
      world.use_device(machine::cuda::make_device(world.rank() % cuda_devices));
      world.barrier(world.group());
    }
    harness::RunOptions options = given;
    options.max_seconds_per_case = seconds;
    options.measure_rates = false;
    options.sink = world.rank() == 0 ? &records : nullptr;
    harness::run(world, cases, options, records);
    world.barrier(world.group());  // peers map the memory of this rank's device
  });
  return records.records;
}

inline std::string refusal(const std::string& unit, const harness::AxisFlags& flags) {
  try {
    harness::plan_cases({unit}, {harness::Profile::quick, flags});
  } catch (const harness::UsageError& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace suite::on_threads

// Measures the cost of one of up to 4096 ranks before it moves its first byte. The parts are the
// messages of one call of the control plane, the rank's plan, and the Execution of that plan. Ranks
// have no processes and no threads. SimulatedControl runs the calls of all ranks one after another.
//
//   control_plane_benchmark --benchmark_filter=all_gather
//
// messages_a_rank counts the messages of the busiest rank, messages those of all ranks, and steps
// the steps of the plan. The time of a control-plane call covers all ranks together.

#include <benchmark/benchmark.h>

#include <memory>
#include <string>

#include "collectives/execute.h"
#include "collectives/plan.h"
#include "machine/device/device.h"
#include "machine/testing/simulated_control.h"

namespace {

using machine::Operation;

void count(benchmark::State& state, const machine::SimulatedControl& all) {
  state.counters["messages_a_rank"] = all.most_messages();
  state.counters["messages"] = all.total_messages();
}

void barrier(benchmark::State& state) {
  for (auto _ : state) {
    machine::SimulatedControl all(static_cast<int>(state.range(0)));
    all.barrier();
    count(state, all);
  }
}

void all_gather(benchmark::State& state) {
  const std::string mine(8, 'x');
  for (auto _ : state) {
    machine::SimulatedControl all(static_cast<int>(state.range(0)));
    all.all_gather([&](int) { return mine; }, [](int, std::string_view) {});
    count(state, all);
  }
}

void broadcast(benchmark::State& state) {
  for (auto _ : state) {
    machine::SimulatedControl all(static_cast<int>(state.range(0)));
    all.broadcast(0, "a command", [](int, std::string_view) {});
    count(state, all);
  }
}

const collectives::Algorithm& algorithm_of(const std::string& name) {
  return collectives::find_algorithm(Operation::all_reduce, name);
}

void plan(benchmark::State& state, const std::string& name) {
  const int ranks = static_cast<int>(state.range(0));
  const collectives::Call call{ranks / 2, ranks, 1, 0, 8};
  for (auto _ : state) {
    const collectives::Plan plan = algorithm_of(name).plan(call);
    state.counters["steps"] = static_cast<double>(plan.steps.size());
  }
}

void execution(benchmark::State& state, const std::string& name) {
  const int ranks = static_cast<int>(state.range(0));
  const std::unique_ptr<machine::Device> device = machine::make_host_device();
  const collectives::CallKey key{
      .algorithm = &algorithm_of(name), .count = 1 << 20, .in_place = true, .inner = 8};
  for (auto _ : state)
    benchmark::DoNotOptimize(collectives::Execution(key, ranks / 2, ranks, device->stream()));
}

void at_all_sizes(benchmark::internal::Benchmark* one) {
  one->ArgName("ranks")->Arg(8)->Arg(64)->Arg(512)->Arg(4096)->Unit(benchmark::kMicrosecond);
}

}  // namespace

int main(int argc, char** argv) {
  at_all_sizes(benchmark::RegisterBenchmark("barrier", barrier));
  at_all_sizes(benchmark::RegisterBenchmark("all_gather", all_gather));
  at_all_sizes(benchmark::RegisterBenchmark("broadcast", broadcast));
  for (const char* name : {"ring", "direct", "recursive_doubling", "hierarchical", "mesh"}) {
    const std::string algorithm = name;
    at_all_sizes(benchmark::RegisterBenchmark(("plan/" + algorithm).c_str(), plan, algorithm));
    at_all_sizes(
        benchmark::RegisterBenchmark(("execution/" + algorithm).c_str(), execution, algorithm));
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

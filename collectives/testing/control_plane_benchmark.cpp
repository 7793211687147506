// Measures the cost of one of up to 4096 ranks apart from moving bytes. The parts are the messages
// of one call of the control plane, the rank's plan, the Execution of that plan, and a run of it
// over a link that moves nothing. Ranks have no processes and no threads. SimulatedControl runs the
// calls of all ranks one after another.
//
//   control_plane_benchmark --benchmark_filter=all_gather
//
// messages_a_rank counts the messages of the busiest rank, messages those of all ranks, steps the
// steps of the plan, and s_a_step the time of a run by its steps. The time of a control-plane call
// covers all ranks together.

#include <benchmark/benchmark.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "collectives/execute.h"
#include "collectives/plan.h"
#include "machine/device/device.h"
#include "machine/link/link.h"
#include "machine/testing/simulated_control.h"
#include "machine/world/world.h"

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

// Peers that have always sent and always received: what remains is the executor's own time, with
// its copies and sums of 32 bytes each.
class SilentLink final : public machine::Link {
 public:
  SilentLink(int rank, int ranks, std::size_t bytes)
      : Link(machine::first_ranks("world", ranks, rank)), data_(bytes) {}
  machine::Transport transport() const override { return machine::Transport::mpi; }

 private:
  std::uint64_t do_send(int, const void*, std::size_t) override { return ++sent_; }
  void do_wait_sent(int, std::uint64_t) override {}
  std::uint64_t last_sent(int) const override { return sent_; }
  void do_receive(int, void* into, std::size_t bytes, machine::Store) override {
    std::memcpy(into, data_.data(), bytes);
  }
  const void* do_receive_in_place(int, std::size_t) override { return data_.data(); }
  void do_release(int) override {}

  std::vector<std::byte> data_;
  std::uint64_t sent_ = 0;
};

void run(benchmark::State& state, const std::string& name) {
  constexpr std::int64_t share = 8;  // floats
  const int ranks = static_cast<int>(state.range(0)), rank = ranks / 2;
  const std::int64_t count = share * ranks;
  const std::unique_ptr<machine::Device> device = machine::make_host_device();
  collectives::Execution execution(
      {.algorithm = &algorithm_of(name), .count = count, .in_place = false, .inner = 8}, rank,
      ranks, device->stream());
  std::vector<float> input(static_cast<std::size_t>(count)), output(input.size());
  const std::size_t bytes = input.size() * sizeof(float);
  SilentLink link(rank, ranks, bytes);
  for (auto _ : state)
    execution.run(link, machine::Reduction::sum, reinterpret_cast<const std::byte*>(input.data()),
                  reinterpret_cast<std::byte*>(output.data()));
  const auto steps =
      static_cast<double>(algorithm_of(name).plan({rank, ranks, 1, 0, 8}).steps.size());
  state.counters["steps"] = steps;
  state.counters["s_a_step"] = benchmark::Counter(
      steps, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
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
    at_all_sizes(benchmark::RegisterBenchmark(("run/" + algorithm).c_str(), run, algorithm));
    at_all_sizes(
        benchmark::RegisterBenchmark(("execution/" + algorithm).c_str(), execution, algorithm));
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

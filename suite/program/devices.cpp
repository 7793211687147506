#include "suite/program/devices.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "harness/fingerprint/adapters.h"
#include "harness/fingerprint/fingerprint.h"
#include "harness/record/run_json.h"
#include "machine/base/error.h"
#include "machine/world/host_topology.h"
#include "machine/world/places.h"

namespace suite {

void choose_device(machine::World& world, machine::Device::Kind kind) {
  if (kind == machine::Device::Kind::host) return;
  // A rank without a GPU also takes part in the exchange.
  machine::RankOfHost mine{world.start_cores(), {}};
  std::string why = machine::cuda::present().why_none;
  try {
    mine.visible = machine::cuda::gpus();
  } catch (const machine::MachineError& error) {
    why = error.what();
  }
  std::vector<machine::RankOfHost> of_host;
  std::size_t index = 0;
  int rank = 0;
  for (machine::RankOfHost& theirs : world.all_gather(world.group(), mine)) {
    if (rank == world.rank()) index = of_host.size();
    if (world.host(rank++) == world.host(world.rank())) of_host.push_back(std::move(theirs));
  }
  if (mine.visible.empty()) throw machine::MachineError(fmt::format("device cuda: {}", why));
  std::vector<machine::Place> places = machine::places(machine::host_topology(), of_host);
  const int gpu = places[index].gpu;
  world.set_places(std::move(places));
  // Before CUDA and NCCL start threads, which inherit the cores.
  world.set_active_ranks(world.size());
  world.use_device(machine::cuda::make_device(gpu));
  world.set_active_ranks(world.size());
}

int gpus_of_host() {
  const int all = harness::gpus_of_driver();
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (!visible) return all;
  const std::string_view names = visible;
  const auto commas = static_cast<int>(std::ranges::count(names, ','));
  return names.empty() ? 0 : std::min(all, commas + 1);
}

void note_gpu_health(machine::World& world, const machine::GpuReading& before,
                     const std::string& directory) {
  const std::string path = directory + "/environment.json";
  const std::string old = world.rank() == 0 ? harness::file_text(path) : std::string();
  const std::string text = harness::with_gpu_health(world, before, old);
  if (text.empty()) return;
  try {
    harness::write_file(path, text, world.faults().disk);
  } catch (const std::exception&) {  // the run has reported it, or its report will
  }
}

void note_gpus(machine::World& world, harness::RunOptions& options) {
  const bool computes = world.computes_on_gpu(), is_virtual = machine::cuda::is_virtual();
  const int visible = is_virtual && !computes ? 0 : machine::cuda::count();
  const std::pair mine(std::max(visible, harness::gpus_of_driver()), world.device().identity());
  std::map<std::string, int> seen;                      // by host
  std::map<std::string, std::set<std::uint64_t>> used;  // by host
  int rank = 0;
  for (const auto& [count, identity] : world.all_gather(world.group(), mine)) {
    const std::string& host = world.host(rank++);
    if (identity != 0) used[host].insert(identity);
    seen[host] = std::max({seen[host], count, static_cast<int>(used[host].size())});
    options.gpu_of_rank.push_back(identity == 0 ? "" : fmt::format("{} {}", host, identity));
  }
  harness::Gpus& gpus = options.context.gpus;
  gpus = {.is_virtual = computes && is_virtual};
  for (const auto& [host, count] : seen) gpus.seen += count;
}

}  // namespace suite

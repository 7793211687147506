#include "suite/program/devices.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <map>
#include <set>
#include <utility>

#include "harness/fingerprint/adapters.h"
#include "harness/fingerprint/fingerprint.h"
#include "harness/record/run_json.h"
#include "machine/base/error.h"

namespace suite {

void choose_device(machine::World& world, machine::Device::Kind kind) {
  if (kind == machine::Device::Kind::host) return;
  const auto& [count, why_none] = machine::cuda::present();
  if (count == 0) throw machine::MachineError(fmt::format("device cuda: {}", why_none));
  int index = 0;
  for (int other = 0; other < world.rank(); ++other)
    index += world.host(other) == world.host(world.rank());
  world.use_device(machine::cuda::make_device(index % count));
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

#include "harness/fingerprint/fingerprint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <hwloc.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <regex>
#include <set>

#include "harness/fingerprint/adapters.h"
#include "harness/fingerprint/build_info.h"
#include "harness/fingerprint/first_line.h"
#include "harness/fingerprint/libraries.h"
#include "harness/json/json.h"
#include "machine/world/binding.h"

namespace harness {
namespace {
constexpr std::string_view prefixes[] = {"NCCL_", "CUDA_",   "UCX_",   "MPICH_",
                                         "MPIR_", "OMPI_",   "FI_",    "OMP_",
                                         "DNNL_", "ONEDNN_", "SLURM_", "SHARDMARK_"};
// Variables that Open MPI's launcher sets for one launch, including addresses and a key.
constexpr std::string_view left_out[] = {"OMPI_MCA_orte_", "OMPI_MCA_ess", "OMPI_COMM_WORLD_",
                                         "OMPI_FILE_LOCATION"};
constexpr std::string_view whole_names[] = {"LD_PRELOAD"};
constexpr std::string_view secret_names[] = {"TOKEN", "KEY",        "SECRET", "PASSW",
                                             "AUTH",  "CREDENTIAL", "COOKIE", "JWT"};
constexpr const char* replacement = "[redacted]";

void put(Json& object, const char* key, const std::string& text) {
  if (!text.empty()) object[key] = text;
}

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name"))
      return line.substr(std::min(line.size(), line.find(':') + 2));
  return "";
}

class Topology {
 public:
  Topology() {
    hwloc_topology_init(&topology_);
    loaded_ = hwloc_topology_load(topology_) == 0;
  }
  ~Topology() { hwloc_topology_destroy(topology_); }
  Topology(const Topology&) = delete;
  Topology& operator=(const Topology&) = delete;

  void describe(Json& hardware) const {
    if (!loaded_) return;
    hardware["packages"] = count(HWLOC_OBJ_PACKAGE);
    hardware["cores"] = count(HWLOC_OBJ_CORE);
    hardware["hardware_threads"] = count(HWLOC_OBJ_PU);
    hardware["numa_nodes"] = count(HWLOC_OBJ_NUMANODE);
    // Not hwloc's sum over NUMA nodes: a virtual machine that lends free pages to its host lowers
    // it.
    hardware["memory_bytes"] = sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
  }

  // Returns the hardware threads on which this process may run, by the system's numbers: "0-3,8".
  std::string binding() const {
    const hwloc_bitmap_t set = hwloc_bitmap_alloc();
    std::string text;
    char* list = nullptr;
    if (loaded_ && hwloc_get_cpubind(topology_, set, HWLOC_CPUBIND_PROCESS) == 0 &&
        hwloc_bitmap_list_asprintf(&list, set) >= 0) {
      text = list;
      std::free(list);
    }
    hwloc_bitmap_free(set);
    return text;
  }

 private:
  int count(hwloc_obj_type_t type) const { return hwloc_get_nbobjs_by_type(topology_, type); }
  hwloc_topology_t topology_ = nullptr;
  bool loaded_ = false;
};

Json json_of(const Library& library) {
  Json json = Json::object();
  put(json, "version", library.version);
  put(json, "library", library.file);
  return json;
}

Json json_of(const machine::GpuReading& reading) {
  Json json = Json::object();
  for (const auto& [fact, text] : reading.texts) json[fact] = text;
  for (const auto& [fact, number] : reading.numbers) json[fact] = number;
  return json;
}

// Returns the facts of a GPU that are the same before and after a run, and that other GPUs of its
// kind share.
Json lasting(const machine::GpuReading& reading) {
  Json json = json_of(reading);
  Json kept = Json::object();
  for (const char* fact :
       {"vbios", "power_cap_mW", "clock_sm_max_mhz", "clock_memory_max_mhz", "pcie_generation_max",
        "pcie_lanes_max", "nvlinks", "persistence_mode", "mig_mode"})
    if (json.contains(fact)) kept[fact] = json[fact];
  return kept;
}

Json hardware(machine::World& world, const Topology& topology) {
  Json json;
  put(json, "cpu", cpu_model());
  topology.describe(json);
  put(json, "governor", first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"));
  put(json, "transparent_huge_pages", first_line("/sys/kernel/mm/transparent_hugepage/enabled"));
  put(json, "numa_balancing", first_line("/proc/sys/kernel/numa_balancing"));
  json["device"] = world.device().description();
  json["cuda_devices"] = machine::cuda::count();
  if (machine::cuda::built()) put(json, "no_cuda_device", machine::cuda::present().why_none);
  const Json gpu = lasting(machine::read_gpu(world.device().pci_address()));
  if (!gpu.empty()) json["gpu"] = gpu;
  const auto adapters = network_adapters();
  json["network"] = adapters.empty() ? Json("none") : Json(adapters);
  return json;
}

// The numbers of cores and NUMA nodes are hwloc's.
Json json_of(const machine::Place& place) {
  Json json{{"gpu", place.gpu}};
  put(json, "bus_id", place.bus_id);
  if (place.numa_node >= 0) json["numa_node"] = place.numa_node;
  json["cores"] = machine::text(place.cores);
  put(json, "adapter", place.adapter);
  return json;
}

Json software() {
  utsname system{};
  ::uname(&system);
  const BuildInfo& build = build_info();
  Json json;
  json["kernel"] = fmt::format("{} {}", system.sysname, system.release);
  put(json, "kernel_arguments", redacted("", first_line("/proc/cmdline")));
  put(json, "gpu_driver", first_line("/proc/driver/nvidia/version"));
  const Library cuda = cuda_library(), nccl = nccl_library();
  json["mpi"] = json_of(mpi_library());
  json["onednn"] = json_of(onednn_library());
  json["cuda"] = {
      {"built", build.cuda}, {"runtime", cuda.version}, {"supported_by_driver", cuda_of_driver()}};
  put(json["cuda"], "library", cuda.file);
  if (machine::cuda::is_virtual()) json["cuda"]["virtual"] = true;
  if (const Library library = cublas_lt_library(); !library.file.empty())
    json["cublasLt"] = json_of(library);
  json["nccl"] = {{"header", build.nccl_header}, {"loaded", nccl.version}};
  put(json["nccl"], "library", nccl.file);
  json["shardmark"] = {{"version", build.version},
                       {"commit", build.commit},
                       {"compiler", build.compiler},
                       {"flags", build.flags},
                       {"build_type", build.build_type}};
  return json;
}

// Moves the values that all ranks share from `ranks` to `same`, and lists the other keys.
void factor(std::vector<Json>& ranks, Json& same, Json& differences, const std::string& path) {
  std::vector<std::string> keys;  // of any rank, in order of appearance
  std::set<std::string> known;
  for (const Json& rank : ranks)
    for (const auto& [key, value] : rank.items())
      if (known.insert(key).second) keys.push_back(key);
  for (const std::string& key : keys) {
    const std::string here = path.empty() ? key : path + "." + key;
    const auto has = [&](const Json& rank) { return rank.contains(key); };
    const bool all = std::ranges::all_of(ranks, has);
    if (all &&
        std::ranges::all_of(ranks, [&](const Json& rank) { return rank[key] == ranks[0][key]; })) {
      same[key] = ranks[0][key];
      for (Json& rank : ranks) rank.erase(key);
    } else if (all && std::ranges::all_of(
                          ranks, [&](const Json& rank) { return rank[key].is_object(); })) {
      std::vector<Json> parts;
      for (const Json& rank : ranks) parts.push_back(rank[key]);
      Json below = Json::object();
      factor(parts, below, differences, here);
      if (!below.empty()) same[key] = std::move(below);
      for (std::size_t i = 0; i < ranks.size(); ++i) ranks[i][key] = std::move(parts[i]);
    } else {
      differences.push_back(here);
    }
  }
}

}  // namespace

std::string redacted(std::string_view name, std::string_view value) {
  std::string upper(name);
  std::ranges::transform(upper, upper.begin(),
                         [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  for (const std::string_view word : secret_names)
    if (upper.find(word) != std::string::npos) return replacement;
  // user:password@host, or only a user, which may be a token.
  static const std::regex in_url(R"((://)[^/@\s]*@)");
  static const std::regex in_option(
      R"(((?:passw\w*|pwd|secret|token|api_?key|jwt)\s*[=:]\s*)[^\s,;&]+)", std::regex::icase);
  static const std::regex bearer(R"((bearer\s+)\S+)", std::regex::icase);
  std::string text = std::regex_replace(std::string(value), in_url, "$1[redacted]@");
  text = std::regex_replace(text, in_option, "$1[redacted]");
  return std::regex_replace(text, bearer, "$1[redacted]");
}

std::map<std::string, std::string> kept_environment(const char* const* environment) {
  std::map<std::string, std::string> kept;
  for (; environment && *environment; ++environment) {
    const std::string_view entry(*environment);
    const std::size_t equals = entry.find('=');
    if (equals == std::string_view::npos) continue;
    const std::string_view name = entry.substr(0, equals);
    const auto starts = [&](std::string_view prefix) { return name.starts_with(prefix); };
    const bool wanted =
        (std::ranges::any_of(prefixes, starts) && std::ranges::none_of(left_out, starts)) ||
        std::ranges::find(whole_names, name) != std::end(whole_names);
    if (wanted) kept[std::string(name)] = redacted(name, entry.substr(equals + 1));
  }
  return kept;
}

std::string fingerprint_json(machine::World& world, const OptionTexts& options,
                             const InjectedVersions& versions, const NcclChoice& nccl) {
  const Topology topology;
  Json json;
  json["rank"] = world.rank();
  json["host"] = world.host(world.rank());
  json["binding"] = topology.binding();
  if (const machine::Place* const place = world.place()) json["place"] = json_of(*place);
  json["hardware"] = hardware(world, topology);
  json["software"] = software();
  for (const auto& [library, version] : versions)
    json["software"][library][library == "nccl"   ? "loaded"
                              : library == "cuda" ? "runtime"
                                                  : "version"] = version;
  // Ranks with another network are a fault. Their adapters and paths may differ.
  put(json["software"]["nccl"], "network", nccl.network);
  if (!nccl.adapters.empty()) json["nccl"]["adapters"] = nccl.adapters;
  if (!nccl.paths.empty()) json["nccl"]["paths"] = fmt::format("{}", fmt::join(nccl.paths, ", "));
  json["environment"] = kept_environment(environ);
  if (!options.empty()) json["options"] = options;
  return json.dump();
}

std::string environment_json(const std::vector<std::string>& fingerprints) {
  std::vector<Json> ranks;
  for (const std::string& text : fingerprints) ranks.push_back(Json::parse(text));
  std::vector<int> numbers;
  for (Json& rank : ranks) {  // removed: the list has it even for a launch of one rank
    numbers.push_back(rank.at("rank").get<int>());
    rank.erase("rank");
  }
  Json same = Json::object(), differences = Json::array();
  factor(ranks, same, differences, "");
  Json listed = Json::array();
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    Json rank{{"rank", numbers[i]}};
    rank.update(ranks[i]);
    listed.push_back(std::move(rank));
  }
  const Json all{{"same_on_all_ranks", same}, {"differences", differences}, {"ranks", listed}};
  return all.dump(2) + "\n";
}

std::string with_gpu_health(machine::World& world, const machine::GpuReading& before,
                            const std::string& environment) {
  const Json mine{{"rank", world.rank()},
                  {"before", json_of(before)},
                  {"after", json_of(machine::read_gpu(world.device().pci_address()))}};
  const auto all = world.all_gather(world.group(), mine.dump());
  if (world.rank() != 0) return {};
  Json launch = Json::array();
  for (const std::string& text : all)
    if (Json rank = Json::parse(text); !rank["before"].empty() || !rank["after"].empty())
      launch.push_back(std::move(rank));
  Json json = Json::parse_or_null(environment);
  if (launch.empty() || !json.is_object()) return {};
  json["gpu_health"].push_back(std::move(launch));
  return json.dump(2) + "\n";
}

std::string gather_environment(machine::World& world, const OptionTexts& options,
                               const InjectedVersions& versions, const NcclChoice& nccl) {
  const auto all =
      world.all_gather(world.group(), fingerprint_json(world, options, versions, nccl));
  return world.rank() == 0 ? environment_json(all) : std::string();
}

std::string mpi_name(const std::string& version) {
  const std::size_t word = version.find(" Version:"), number = version.rfind('\t');
  return word == std::string::npos || number == std::string::npos
             ? version
             : version.substr(0, word) + " " + version.substr(number + 1);
}

}  // namespace harness

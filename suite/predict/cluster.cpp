#include "suite/predict/cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <set>
#include <variant>

#include "machine/base/names.h"
#include "suite/files/mapped_file.h"
#include "suite/predict/embedded.h"
#include "suite/predict/toml_leaves.h"

namespace suite::predict {
namespace {

// One key of a cluster file. A number is multiplied by `unit` when it is read.
struct Key {
  std::string_view path, about;
  std::variant<double* (*)(Cluster&), int* (*)(Cluster&), std::string* (*)(Cluster&)> member;
  double unit = 1, least = 0, most = 1e15;
  bool required = true;
};

#define REAL(member) (+[](Cluster& c) { return &c.member; })

const std::vector<Key>& keys() {
  static const std::vector<Key> all{
      {"name", "of the cluster", REAL(name)},
      {"source", "of the numbers", REAL(source)},
      {"gpus_per_node", "GPUs that the links of a node join", REAL(gpus_per_node), 1, 1, 4096},
      {"gpu.name", "of the GPU", REAL(gpu.name)},
      {"gpu.half_tflops", "dense peak in float16 and bfloat16", REAL(gpu.half), 1e12, 1e-6, 1e6},
      {"gpu.float32_tflops", "dense peak in float32", REAL(gpu.float32), 1e12, 1e-6, 1e6},
      {"gpu.fp8_tflops", "dense peak in 8-bit floating point; 0: unknown", REAL(gpu.fp8), 1e12, 0,
       1e6, false},
      {"gpu.memory_gb", "memory of a GPU", REAL(gpu.memory), 1e9, 1e-3, 1e6},
      {"gpu.bandwidth_gb_s", "peak of its memory", REAL(gpu.bandwidth), 1e9, 1e-3, 1e6},
      {"gpu.bandwidth_fraction", "part of that peak that a streaming kernel reaches",
       REAL(gpu.bandwidth_fraction), 1, 1e-3, 1},
      {"gpu.gemm_fraction", "part of the dense peak that a large product sustains",
       REAL(gpu.gemm_fraction), 1, 1e-3, 1},
      {"gpu.gemm_depth", "inner extent at which a product reaches half of that",
       REAL(gpu.gemm_depth), 1, 0, 1e5},
      {"gpu.multiprocessors", "that run one tile of a product at a time", REAL(gpu.multiprocessors),
       1, 1, 1e5},
      {"gpu.tile_rows", "rows of a tile", REAL(gpu.tile_rows), 1, 1, 1e5},
      {"gpu.tile_columns", "columns of a tile", REAL(gpu.tile_columns), 1, 1, 1e5},
      {"gpu.kernel_us", "time between two kernels", REAL(gpu.kernel_s), 1e-6, 0, 1e5},
      {"gpu.watts", "power of a GPU and its share of the node; 0: unknown", REAL(gpu.watts), 1, 0,
       1e5, false},
      {"node.latency_us", "of a message within a node", REAL(node.latency_s), 1e-6, 0, 1e6},
      {"node.bandwidth_gb_s", "of a GPU within its node, one direction", REAL(node.bandwidth), 1e9,
       1e-6, 1e6},
      {"node.fraction", "part of it that large collectives reach", REAL(node.fraction), 1, 1e-3, 1},
      {"network.latency_us", "of a message between nodes", REAL(network.latency_s), 1e-6, 0, 1e6},
      {"network.bandwidth_gb_s", "of an adapter, one direction", REAL(network.bandwidth), 1e9, 1e-6,
       1e6},
      {"network.fraction", "part of it that large collectives reach", REAL(network.fraction), 1,
       1e-3, 1},
      {"network.shared_by", "GPUs that share an adapter", REAL(network.shared_by), 1, 1, 4096},
      {"network.oversubscription",
       "of the tree; 1: full bisection (fat tree) or rails that the traffic does not leave",
       REAL(network.oversubscription), 1, 1, 1000},
      {"host.memory_gb", "memory of a node", REAL(host_memory), 1e9, 0, 1e7},
      {"host.bandwidth_gb_s", "of the memory of a node", REAL(host_bandwidth), 1e9, 1e-6, 1e6},
      {"host.pcie_gb_s", "between a GPU and its host, one direction", REAL(pcie), 1e9, 1e-6, 1e6},
      {"nvme.read_gb_s", "of a node; 0: no storage", REAL(nvme_read), 1e9, 0, 1e6, false},
      {"nvme.write_gb_s", "of a node; 0: no storage", REAL(nvme_write), 1e9, 0, 1e6, false},
  };
  return all;
}
#undef REAL

const Key* find_key(const std::string& path) {
  const auto found = std::ranges::find(keys(), path, &Key::path);
  return found == keys().end() ? nullptr : &*found;
}

// Returns whether keys lie below this path.
bool is_section(const std::string& path) {
  return std::ranges::any_of(keys(),
                             [&](const Key& key) { return key.path.starts_with(path + "."); });
}

// Returns all keys and the sections that hold them.
std::vector<std::string> key_names() {
  std::set<std::string> names;
  for (const Key& key : keys()) {
    names.emplace(key.path);
    names.emplace(key.path.substr(0, key.path.find('.')));
  }
  return {names.begin(), names.end()};
}

void set(Cluster& cluster, const Key& key, const Leaf& leaf, const std::string& at) {
  if (const auto* const word = std::get_if<2>(&key.member)) {
    const auto* const value = std::get_if<std::string>(&leaf.value);
    if (!value) throw FileError("{} is {}; expected a text", at, leaf.described());
    *(*word)(cluster) = *value;
    return;
  }
  const auto* const value = std::get_if<double>(&leaf.value);
  const bool whole = std::holds_alternative<int* (*)(Cluster&)>(key.member);
  const bool in_range = value && *value >= key.least && *value <= key.most;  // nan is not
  if (!in_range || (whole && *value != static_cast<int>(*value)))
    throw FileError("{} is {}; expected a {} from {} to {}", at, leaf.described(),
                    whole ? "whole number" : "number", key.least, key.most);
  if (whole)
    *std::get<1>(key.member)(cluster) = static_cast<int>(*value);
  else
    *std::get<0>(key.member)(cluster) = *value * key.unit;
}

std::string value_text(const Cluster& cluster, const Key& key) {
  auto& mutable_cluster = const_cast<Cluster&>(cluster);  // NOLINT: the members are only read
  if (const auto* const word = std::get_if<2>(&key.member)) return *(*word)(mutable_cluster);
  if (const auto* const whole = std::get_if<1>(&key.member))
    return fmt::format("{}", *(*whole)(mutable_cluster));
  return fmt::format("{:.6g}", *std::get<0>(key.member)(mutable_cluster) / key.unit);
}

}  // namespace

std::vector<std::string> cluster_names() {
  std::vector<std::string> names;
  for (const EmbeddedFile& file : embedded_clusters()) names.emplace_back(file.name);
  return names;
}

Cluster parse_cluster(const std::string& file, std::string_view toml) {
  Cluster cluster;
  std::set<std::string_view> given;
  for (const Leaf& leaf : toml_leaves(file, toml)) {
    if (leaf.kind == Leaf::Kind::object && is_section(leaf.path)) continue;
    const std::string at = fmt::format("{}:{}: {}", file, leaf.line, printable(leaf.path));
    const Key* const key = find_key(leaf.path);
    if (!key) {
      const std::string near = machine::nearest(leaf.path, key_names());
      if (near.empty()) throw FileError("{} is unknown; the README of predict lists all keys", at);
      throw FileError("{} is unknown; did you mean '{}'?", at, near);
    }
    set(cluster, *key, leaf, at);
    given.insert(key->path);
  }
  for (const Key& key : keys())
    if (key.required && !given.contains(key.path))
      throw FileError("{}: {} is missing; it is {}", file, key.path, key.about);
  return cluster;
}

Cluster read_cluster(const std::string& name_or_path) {
  for (const EmbeddedFile& file : embedded_clusters())
    if (file.name == name_or_path)
      return parse_cluster(fmt::format("{}.toml", file.name), file.text);
  if (!name_or_path.ends_with(".toml"))
    throw harness::UsageError(machine::unknown("cluster", name_or_path, cluster_names()) +
                              "; or give a file NAME.toml");
  const MappedFile file(name_or_path);
  return parse_cluster(name_or_path, file.text());
}

std::vector<ClusterValue> values(const Cluster& cluster) {
  std::vector<ClusterValue> all;
  for (const Key& key : keys()) all.push_back({key.path, key.about, value_text(cluster, key)});
  return all;
}

std::string text(const Cluster& cluster) {
  std::string out;
  for (const ClusterValue& one : values(cluster))
    out += fmt::format("{:<26} {:>12}  {}\n", one.key, one.value, one.about);
  return out;
}

std::string cluster_file(const Cluster& cluster) {
  std::string out;
  std::string_view open_section;
  for (const Key& key : keys()) {
    const std::size_t dot = key.path.find('.');
    const bool has_section = dot != std::string_view::npos;
    const std::string_view section = has_section ? key.path.substr(0, dot) : std::string_view();
    const std::string_view name = has_section ? key.path.substr(dot + 1) : key.path;
    if (section != open_section) out += fmt::format("\n[{}]\n", section);
    open_section = section;
    const std::string value = value_text(cluster, key);
    if (std::holds_alternative<std::string* (*)(Cluster&)>(key.member))
      out += fmt::format("{} = {}\n", name, toml_text(value));
    else
      out += fmt::format("{:<32}  # {}\n", fmt::format("{} = {}", name, value), key.about);
  }
  return out;
}

std::string cluster_keys_table() {
  std::string out = "| key | meaning |\n|---|---|\n";
  for (const Key& key : keys())
    out += fmt::format("| `{}` | {}{} |\n", key.path, key.about,
                       key.required ? "" : "; may be left out");
  return out;
}

}  // namespace suite::predict

#pragma once
// Hosts with GPUs and network adapters, as hwloc would read them.
//
//   HostXml host(2, 4, 4);                         // packages, NUMA nodes a package, cores a node
//   host.add(3, 0, gpu("0000:07:00.0")).add(3, 0, adapter("0000:08:00.0", "mlx5_0"));
//   const HostTopology topology = host.read();

#include <fmt/format.h>
#include <hwloc.h>

#include <cstdlib>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "machine/world/host_topology.h"

namespace machine {

struct PciXml {
  std::string bus_id, type;
  std::string adapter;  // its name; empty: a GPU
};
inline PciXml gpu(std::string bus_id) {
  return {std::move(bus_id), "0302 [10de:2330] [10de:16c1] a1", ""};
}
inline PciXml adapter(std::string bus_id, std::string name) {
  return {std::move(bus_id), "0207 [15b3:1021] [15b3:0041] 00", std::move(name)};
}

class HostXml {
 public:
  HostXml(int packages, int nodes, int cores)  // nodes of a package, cores of a node
      : packages_(packages), nodes_(nodes), cores_(cores) {}

  // Adds a device to a PCI switch of a NUMA node, or of a package (-1 - package).
  HostXml& add(int node, int pci_switch, PciXml device) {
    devices_[node][pci_switch].push_back(std::move(device));
    return *this;
  }
  // Each package also has a NUMA node for the memory of its GPU.
  HostXml& with_gpu_memory() {
    gpu_memory_ = true;
    return *this;
  }

  std::string text() const {
    next_ = 1;
    std::string xml =
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n"
        "<topology version=\"2.0\">\n";
    const Sets all{{0, packages_ * nodes_ * cores_}, {0, packages_ * nodes_}};
    xml += open("Machine", 0, all,
                fmt::format(" allowed_cpuset=\"{}\" allowed_nodeset=\"{}\"", set(all.cores, {}),
                            set(all.nodes, memory_nodes(0, packages_))));
    for (int package = 0; package < packages_; ++package) xml += package_text(package);
    return xml + "</object>\n</topology>\n";
  }

  HostTopology read() const {
    const std::string xml = text();
    hwloc_topology_t topology = nullptr;
    hwloc_topology_init(&topology);
    hwloc_topology_set_io_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    if (hwloc_topology_set_xmlbuffer(topology, xml.c_str(), static_cast<int>(xml.size() + 1)) !=
            0 ||
        hwloc_topology_load(topology) != 0)
      throw std::runtime_error("hwloc cannot read " + xml);
    HostTopology host = read_topology(topology);
    hwloc_topology_destroy(topology);
    return host;
  }

 private:
  using Range = std::pair<int, int>;  // from, up to
  struct Sets {
    Range cores, nodes;
  };

  static std::string set(Range range, const std::vector<int>& more) {
    const hwloc_bitmap_t bits = hwloc_bitmap_alloc();
    for (int i = range.first; i < range.second; ++i)
      hwloc_bitmap_set(bits, static_cast<unsigned>(i));
    for (const int i : more) hwloc_bitmap_set(bits, static_cast<unsigned>(i));
    char* text = nullptr;
    hwloc_bitmap_asprintf(&text, bits);
    std::string result = text;
    std::free(text);
    hwloc_bitmap_free(bits);
    return result;
  }
  // Returns the numbers of the nodes for GPUs' memory of these packages.
  std::vector<int> memory_nodes(int from, int to) const {
    std::vector<int> nodes;
    for (int package = from; gpu_memory_ && package < to; ++package)
      nodes.push_back(packages_ * nodes_ + package);
    return nodes;
  }

  std::string open(const char* type, int number, Sets sets, const std::string& more = "") const {
    const int first = sets.cores.first / (nodes_ * cores_),
              last = (sets.cores.second - 1) / (nodes_ * cores_) + 1;
    const std::string cores = set(sets.cores, {}),
                      nodes = set(sets.nodes, memory_nodes(first, last));
    return fmt::format(
        "<object type=\"{}\" os_index=\"{}\" cpuset=\"{}\" complete_cpuset=\"{}\" nodeset=\"{}\" "
        "complete_nodeset=\"{}\" gp_index=\"{}\"{}>\n",
        type, number, cores, cores, nodes, nodes, next_++, more);
  }
  std::string memory_node(int number, Range cores) const {
    const std::string its = set(cores, {}), node = set({number, number + 1}, {});
    return fmt::format(
        "<object type=\"NUMANode\" os_index=\"{}\" cpuset=\"{}\" complete_cpuset=\"{}\" "
        "nodeset=\"{}\" complete_nodeset=\"{}\" gp_index=\"{}\" local_memory=\"1073741824\">\n"
        "<page_type size=\"4096\" count=\"262144\"/>\n</object>\n",
        number, its, its, node, node, next_++);
  }

  std::string package_text(int package) const {
    const Sets its{{package * nodes_ * cores_, (package + 1) * nodes_ * cores_},
                   {package * nodes_, (package + 1) * nodes_}};
    std::string xml = open("Package", package, its);
    if (gpu_memory_) xml += memory_node(packages_ * nodes_ + package, its.cores);
    for (int node = its.nodes.first; node < its.nodes.second; ++node) {
      const Range cores{node * cores_, (node + 1) * cores_};
      if (nodes_ > 1)
        xml += open("Group", node, {cores, {node, node + 1}}, " kind=\"1000\" dont_merge=\"1\"");
      xml += memory_node(node, cores);
      for (int core = cores.first; core < cores.second; ++core) {
        const Sets one{{core, core + 1}, {node, node + 1}};
        xml += open("Core", core, one) + open("PU", core, one) + "</object>\n</object>\n";
      }
      xml += devices_text(node);
      if (nodes_ > 1) xml += "</object>\n";
    }
    return xml + devices_text(-1 - package) + "</object>\n";
  }

  std::string devices_text(int node) const {
    const auto of_node = devices_.find(node);
    if (of_node == devices_.end()) return "";
    std::string xml = fmt::format(
        "<object type=\"Bridge\" gp_index=\"{}\" bridge_type=\"0-1\" depth=\"0\" "
        "bridge_pci=\"0000:[00-ff]\">\n",
        next_++);
    for (const auto& [number, devices] : of_node->second) {
      xml += fmt::format(
          "<object type=\"Bridge\" gp_index=\"{}\" bridge_type=\"1-1\" depth=\"1\" "
          "bridge_pci=\"0000:[01-ff]\" pci_busid=\"0000:00:{:02x}.0\" "
          "pci_type=\"0604 [1000:c010] [1000:100b] b0\" pci_link_speed=\"31.507692\">\n",
          next_++, number);
      for (const PciXml& device : devices) {
        xml += fmt::format(
            "<object type=\"PCIDev\" gp_index=\"{}\" pci_busid=\"{}\" pci_type=\"{}\" "
            "pci_link_speed=\"31.507692\">\n",
            next_++, device.bus_id, device.type);
        if (!device.adapter.empty())
          xml +=
              fmt::format("<object type=\"OSDev\" gp_index=\"{}\" name=\"{}\" osdev_type=\"3\"/>\n",
                          next_++, device.adapter);
        xml += "</object>\n";
      }
      xml += "</object>\n";
    }
    return xml + "</object>\n";
  }

  int packages_, nodes_, cores_;
  bool gpu_memory_ = false;
  std::map<int, std::map<int, std::vector<PciXml>>> devices_;  // by node and switch
  mutable int next_ = 1;                                       // the next gp_index
};

}  // namespace machine

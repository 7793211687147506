#include "machine/world/host_topology.h"

#include <fmt/format.h>
#include <hwloc.h>

#include <algorithm>

#include "machine/base/error.h"

namespace machine {
namespace {

std::vector<int> cores_in(hwloc_topology_t topology, hwloc_const_cpuset_t set) {
  std::vector<int> cores;
  for (hwloc_obj_t core = nullptr;
       (core = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE, core)) != nullptr;)
    if (hwloc_bitmap_intersects(core->cpuset, set))
      cores.push_back(static_cast<int>(core->logical_index));
  return cores;
}

// Returns the NUMA node of the object's cores, or -1 if they have several. If nodes have the same
// cores, for example the memory of a CPU and that of a GPU next to it, returns the first.
int numa_node_of(hwloc_topology_t topology, hwloc_obj_t object) {
  hwloc_obj_t first = nullptr;
  for (hwloc_obj_t node = nullptr;
       (node = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, node)) != nullptr;) {
    if (!hwloc_bitmap_isset(object->nodeset, node->os_index) || hwloc_bitmap_iszero(node->cpuset))
      continue;
    if (!first)
      first = node;
    else if (!hwloc_bitmap_isequal(first->cpuset, node->cpuset))
      return -1;
  }
  return first ? static_cast<int>(first->logical_index) : -1;
}

HostTopology::Device device_of(hwloc_topology_t topology, hwloc_obj_t pci) {
  const auto& place = pci->attr->pcidev;
  const hwloc_obj_t near = hwloc_get_non_io_ancestor_obj(topology, pci);
  HostTopology::Device device;
  device.bus_id = fmt::format("{:04x}:{:02x}:{:02x}.{:x}", unsigned{place.domain},
                              unsigned{place.bus}, unsigned{place.dev}, unsigned{place.func});
  device.cores = cores_in(topology, near->cpuset);
  device.numa_node = numa_node_of(topology, near);
  for (hwloc_obj_t above = pci->parent; above; above = above->parent)
    device.path.push_back(above->gp_index);
  std::ranges::reverse(device.path);
  return device;
}

std::vector<HostTopology::Adapter> adapters_of(hwloc_topology_t topology,
                                               hwloc_obj_osdev_type_t type) {
  std::vector<HostTopology::Adapter> adapters;
  for (hwloc_obj_t one = nullptr; (one = hwloc_get_next_osdev(topology, one)) != nullptr;) {
    if (one->attr->osdev.type != type || !one->name) continue;
    hwloc_obj_t pci = one->parent;
    while (pci && pci->type != HWLOC_OBJ_PCI_DEVICE) pci = pci->parent;
    if (pci) adapters.push_back({one->name, device_of(topology, pci)});
  }
  return adapters;
}

}  // namespace

const HostTopology::Device* HostTopology::find(const std::string& bus_id) const {
  const auto found = std::ranges::find(devices, bus_id, &Device::bus_id);
  return found == devices.end() ? nullptr : &*found;
}

HostTopology read_topology(hwloc_topology* topology) {
  HostTopology host;
  for (hwloc_obj_t core = nullptr;
       (core = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE, core)) != nullptr;) {
    const hwloc_obj_t package = hwloc_get_ancestor_obj_by_type(topology, HWLOC_OBJ_PACKAGE, core);
    host.cores.push_back({package ? static_cast<int>(package->logical_index) : -1});
  }
  for (hwloc_obj_t pci = nullptr; (pci = hwloc_get_next_pcidev(topology, pci)) != nullptr;)
    host.devices.push_back(device_of(topology, pci));
  host.adapters = adapters_of(topology, HWLOC_OBJ_OSDEV_OPENFABRICS);
  if (host.adapters.empty()) host.adapters = adapters_of(topology, HWLOC_OBJ_OSDEV_NETWORK);
  return host;
}

hwloc_topology* loaded_topology() {
  static hwloc_topology* const loaded = [] {
    hwloc_topology_t result = nullptr;
    if (hwloc_topology_init(&result) != 0) throw MachineError("hwloc cannot start");
    // Cores that this process may not use are included, so that all ranks number the cores in the
    // same way.
    hwloc_topology_set_flags(result, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
    hwloc_topology_set_io_types_filter(result, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    // These components of hwloc start CUDA and other runtimes. The PCI devices are enough.
    for (const char* component : {"cuda", "nvml", "opencl", "gl", "rsmi", "levelzero"})
      hwloc_topology_set_components(result, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, component);
    if (hwloc_topology_load(result) != 0)
      throw MachineError("hwloc cannot read this host's topology");
    return result;
  }();
  return loaded;
}

const HostTopology& host_topology() {
  static const HostTopology host = read_topology(loaded_topology());
  return host;
}

}  // namespace machine

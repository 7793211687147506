#pragma once
// The cores, NUMA nodes and PCI devices of a host, as plain values. Numbers of cores, NUMA nodes
// and packages are hwloc's logical numbers. They count the whole host, so they mean the same to
// processes that may use different cores of it.

#include <cstdint>
#include <string>
#include <vector>

struct hwloc_topology;

namespace machine {

struct HostTopology {
  struct Core {
    int package = -1;  // -1: unknown
  };
  struct Device {
    std::string bus_id;               // "0000:1b:00.0"
    std::vector<int> cores;           // of the part of the host to which the device is attached
    int numa_node = -1;               // of that part; -1: unknown, or the part has several
    std::vector<std::uint64_t> path;  // the objects above the device, from the root
  };
  struct Adapter {
    std::string name;  // "mlx5_0"
    Device device;
  };
  std::vector<Core> cores;
  std::vector<Device> devices;
  // InfiniBand, RoCE and EFA devices. A host without them has its network interfaces here.
  std::vector<Adapter> adapters;

  // Returns null if the host does not list the device, for example in some containers.
  const Device* find(const std::string& bus_id) const;
};

// Reads a topology that hwloc has loaded with PCI devices.
HostTopology read_topology(hwloc_topology* topology);

// This host. Read once and kept for the process: reading takes milliseconds. loaded_topology throws
// MachineError if hwloc cannot read the host. Environment variables of hwloc can name another host
// (HWLOC_XMLFILE).
hwloc_topology* loaded_topology();
const HostTopology& host_topology();

}  // namespace machine

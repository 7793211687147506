#pragma once
// The network adapters of this host, as Linux lists them.

#include <filesystem>
#include <map>
#include <string>

namespace harness {

// By name: "mlx5_0" -> "400 Gb/sec (4X NDR), InfiniBand, ACTIVE, firmware 28.39.1002, NUMA node 0",
// "eth0" -> "25000 Mb/s, up, MTU 9000, ena". Only devices of hardware. The network interfaces of
// InfiniBand and RoCE devices are left out, because the device is listed.
std::map<std::string, std::string> network_adapters(const std::filesystem::path& sys = "/sys");

}  // namespace harness

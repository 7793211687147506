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

// Returns the number of GPUs that NVIDIA's driver of this host has, also those that
// CUDA_VISIBLE_DEVICES hides and those of a program without CUDA.
int gpus_of_driver(const std::filesystem::path& proc = "/proc");

}  // namespace harness

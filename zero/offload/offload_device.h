#pragma once
// The words of DeepSpeed's `device` in offload_optimizer (offload.h) and offload_param
// (offload_param.h).

#include <string>
#include <string_view>
#include <vector>

namespace zero {

enum class OffloadDevice : unsigned char { none, cpu, nvme };
std::string_view name(OffloadDevice device);
std::vector<std::string> offload_device_names();
// key: for messages. Throws std::invalid_argument naming the nearest.
OffloadDevice find_offload_device(std::string_view name,
                                  std::string_view key = "offload_optimizer");

}  // namespace zero

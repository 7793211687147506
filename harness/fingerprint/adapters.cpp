#include "harness/fingerprint/adapters.h"

#include <fmt/format.h>

#include <vector>

#include "harness/fingerprint/first_line.h"

namespace harness {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> entries(const fs::path& folder) {
  std::vector<fs::path> paths;
  std::error_code ignored;
  for (fs::directory_iterator at(folder, ignored), end; at != end; at.increment(ignored))
    paths.push_back(at->path());
  return paths;
}

void add(std::string& text, const std::string& value, const char* format = "{}") {
  if (value.empty()) return;
  text += (text.empty() ? "" : ", ") + fmt::format(fmt::runtime(format), value);
}

// "4: ACTIVE" -> "ACTIVE".
std::string word_of(const std::string& state) {
  const std::size_t colon = state.find(": ");
  return colon == std::string::npos ? state : state.substr(colon + 2);
}

void add_numa_node(std::string& text, const fs::path& device) {
  const std::string node = first_line(device / "numa_node");
  if (!node.starts_with("-")) add(text, node, "NUMA node {}");
}

std::string port_text(const fs::path& device, const fs::path& port) {
  std::string text;
  add(text, first_line(port / "rate"));
  add(text, first_line(port / "link_layer"));
  add(text, word_of(first_line(port / "state")));
  add(text, first_line(device / "fw_ver"), "firmware {}");
  add_numa_node(text, device / "device");
  return text;
}

std::string interface_text(const fs::path& interface) {
  std::string text;
  const std::string speed = first_line(interface / "speed");
  if (!speed.starts_with("-")) add(text, speed, "{} Mb/s");
  add(text, first_line(interface / "operstate"));
  add(text, first_line(interface / "mtu"), "MTU {}");
  std::error_code ignored;
  add(text, fs::read_symlink(interface / "device" / "driver", ignored).filename().string());
  add_numa_node(text, interface / "device");
  return text;
}

}  // namespace

std::map<std::string, std::string> network_adapters(const fs::path& sys) {
  std::map<std::string, std::string> adapters;
  for (const fs::path& device : entries(sys / "class" / "infiniband")) {
    const std::vector<fs::path> ports = entries(device / "ports");
    for (const fs::path& port : ports) {
      const std::string name = device.filename().string();
      adapters[ports.size() == 1 ? name
                                 : fmt::format("{} port {}", name, port.filename().string())] =
          port_text(device, port);
    }
  }
  std::error_code ignored;
  for (const fs::path& interface : entries(sys / "class" / "net"))
    if (fs::exists(interface / "device", ignored) &&
        !fs::exists(interface / "device" / "infiniband", ignored))
      adapters[interface.filename().string()] = interface_text(interface);
  return adapters;
}

int gpus_of_driver(const fs::path& proc) {
  return static_cast<int>(entries(proc / "driver" / "nvidia" / "gpus").size());
}

}  // namespace harness

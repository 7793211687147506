#include "suite/plan/host_memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>
#include <utility>

namespace suite::configuration {
namespace {

// Returns the number after a line's first word. Empty: no such line, or "max".
std::optional<double> number_after(const std::string& path, const std::string& word) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string first;
    double number = 0;
    if (words >> first && first == word && words >> number) return number;
  }
  return {};
}

std::optional<double> number_in(const std::string& path) {
  std::ifstream file(path);
  double number = 0;
  if (file >> number) return number;
  return {};
}

// Returns the bytes below the limit of one control group (cgroup v2). The kernel takes back the
// pages of files before it ends a process.
std::optional<double> room_of_group(const std::string& folder) {
  const std::optional<double> most = number_in(folder + "/memory.max");
  const std::optional<double> now = number_in(folder + "/memory.current");
  if (!most || !now) return {};
  const double files = number_after(folder + "/memory.stat", "inactive_file").value_or(0) +
                       number_after(folder + "/memory.stat", "active_file").value_or(0);
  return std::max(0.0, *most - std::max(0.0, *now - files));
}

// Returns the path of the process's control group, "/system.slice/job_1".
std::string group_path(const std::string& root) {
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("0::")) return line.substr(3);
  return "";
}

}  // namespace

HostMemory host_memory(const std::string& root) {
  HostMemory memory;
  // "MemAvailable:   16000 kB"
  memory.room = 1024 * number_after(root + "/proc/meminfo", "MemAvailable:").value_or(0);
  const std::string groups = root + "/sys/fs/cgroup";
  for (std::string path = group_path(root);; path.resize(path.rfind('/'))) {
    if (path == "/") path.clear();
    if (const std::optional<double> room = room_of_group(groups + path))
      memory.room = memory.room > 0 ? std::min(memory.room, *room) : *room;
    if (path.find('/') == std::string::npos) break;
  }
  std::ifstream pages(root + "/proc/self/statm");
  double all = 0, resident = 0;
  if (pages >> all >> resident) memory.held = resident * static_cast<double>(sysconf(_SC_PAGESIZE));
  return memory;
}

}  // namespace suite::configuration

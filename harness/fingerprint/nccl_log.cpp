#include "harness/fingerprint/nccl_log.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <regex>
#include <string>
#include <utility>

namespace harness {
namespace {

constexpr const char* level_variable = "NCCL_DEBUG";
constexpr const char* file_variable = "NCCL_DEBUG_FILE";

// "NET/IB/0/GDRDMA" -> "NET/IB/GDRDMA": without the number of the adapter.
std::string without_numbers(const std::string& path) {
  static const std::regex number("/[0-9]+(?=/|$)");
  return std::regex_replace(path, number, "");
}

// "[0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>" -> "mlx5_0:1/IB mlx5_1:1/RoCE".
// Addresses of hosts are left out.
std::string adapters_in(const std::string& text) {
  static const std::regex adapter(R"(\[[0-9]+\]([^\s;<]+))");
  std::string found;
  const std::string list = text.substr(0, text.find(';'));
  for (std::sregex_iterator at(list.begin(), list.end(), adapter), end; at != end; ++at) {
    std::string name = (*at)[1];
    if (list.find(name + "<") != std::string::npos)
      name.resize(std::min(name.size(), name.find(':')));
    found += (found.empty() ? "" : " ") + name;
  }
  return found;
}

}  // namespace

NcclChoice read_nccl_log(std::istream& log) {
  static const std::regex network(R"(NCCL INFO Using network (.*\S))");
  static const std::regex adapters(R"(NCCL INFO NET/([A-Za-z ]*[A-Za-z]) ?: Using (.*))");
  static const std::regex channel(R"(NCCL INFO Channel .* via (\S.*\S))");
  static const std::regex nvls(R"(NCCL INFO (?:Connected NVLS tree|NVLS comm ))");
  NcclChoice choice;
  std::string adapters_of;  // the network of choice.adapters
  for (std::string line; std::getline(log, line);) {
    std::smatch found;
    if (std::regex_search(line, found, network)) {
      choice.network = found[1];
    } else if (std::regex_search(line, found, adapters)) {
      if (std::string names = adapters_in(found[2]); !names.empty()) {
        adapters_of = found[1];
        choice.adapters = std::move(names);
      }
    } else if (std::regex_search(line, found, channel)) {
      const std::string path = found[1];
      choice.paths.insert(without_numbers(path.substr(0, path.find(" comm "))));
    } else if (std::regex_search(line, nvls)) {
      choice.paths.insert("NVLS");
    }
  }
  // NCCL may look at a network and then take another one.
  if (!choice.network.empty() && adapters_of != choice.network) choice.adapters.clear();
  return choice;
}

NcclLog::NcclLog(const std::filesystem::path& folder) {
  if (std::getenv(level_variable) || std::getenv(file_variable)) return;
  file_ = folder / fmt::format("shardmark-nccl-{}.log", ::getpid());
  set_ = true;
  ::setenv(level_variable, "INFO", 1);
  ::setenv(file_variable, file_.c_str(), 1);
}

NcclLog::~NcclLog() { restore(); }

void NcclLog::restore() {
  if (!set_) return;
  set_ = false;
  ::unsetenv(level_variable);
  ::unsetenv(file_variable);
  std::error_code ignored;
  std::filesystem::remove(file_, ignored);
}

NcclChoice NcclLog::end() {
  if (!set_) return {};
  std::ifstream log(file_);
  NcclChoice choice = read_nccl_log(log);
  restore();
  return choice;
}

}  // namespace harness

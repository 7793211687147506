#pragma once
// The first line of a file of /proc or /sys.

#include <filesystem>
#include <fstream>
#include <string>

namespace harness {

// Returns an empty text if the file is missing, or if the driver reports no value.
inline std::string first_line(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace harness

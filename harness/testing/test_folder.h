#pragma once
// For tests: a folder that is removed at the end, and the bytes of files.

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace harness {

// Creates a new file, because some file systems write a truncated file to the disk at once.
inline void write_bytes(const std::string& path, std::string_view bytes) {
  std::filesystem::remove(path);
  std::ofstream(path, std::ios::binary).write(bytes.data(), std::ssize(bytes));
}

inline std::string read_bytes(const std::string& path) {
  std::ostringstream bytes;
  bytes << std::ifstream(path, std::ios::binary).rdbuf();
  return std::move(bytes).str();
}

class TestFolder {
 public:
  TestFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "shardmark_XXXXXX").string();
    if (!mkdtemp(name.data())) throw std::runtime_error("cannot create a folder for the test");
    path_ = name;
  }
  ~TestFolder() { std::filesystem::remove_all(path_); }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;

  std::string path() const { return path_; }
  std::string path(const std::string& name) const { return path_ + "/" + name; }
  // `name` may contain folders, which are created.
  void put(const std::string& name, std::string_view text) const {
    std::filesystem::create_directories(std::filesystem::path(path(name)).parent_path());
    write_bytes(path(name), text);
  }
  std::string text(const std::string& name) const { return read_bytes(path(name)); }
  std::size_t files() const {
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(path_), {}));
  }

 private:
  std::string path_;
};

}  // namespace harness

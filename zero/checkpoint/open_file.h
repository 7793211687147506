#pragma once
// A file of a checkpoint, open for reading.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace zero {

class OpenFile {
 public:
  explicit OpenFile(const std::string& path);
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  ~OpenFile();

  [[noreturn]] void refuse(std::string_view why) const;  // throws CheckpointError
  std::uint64_t size() const;
  void read(std::uint64_t offset, void* into, std::size_t bytes) const;

 private:
  std::string path_;
  int file_;
};

}  // namespace zero

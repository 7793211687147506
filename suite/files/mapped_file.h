#pragma once
// A file's bytes, mapped to be read, and the error that every reader of a file throws.
//
//   MappedFile file("model.safetensors");
//   const auto length = file.at<std::uint64_t>(0);
//
// Readers check each number before they use it. They cannot detect that another program shortens
// the mapped file, which ends this program with SIGBUS. Writers that rename a complete file into
// place (new_file.h) never shorten it.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "harness/unit/sweep.h"

namespace suite {

// One line: the file, what in it is wrong, the value and what was expected.
class FileError : public harness::UsageError {
 public:
  using UsageError::UsageError;
};

// Returns a file's text for one line of a message: control characters escaped, at most 80
// bytes.
std::string printable(std::string_view text);
std::string in_quotes(std::string_view text);

class MappedFile {
 public:
  // Throws FileError: missing (naming the nearest there is), unreadable, a directory or another
  // thing that is not a regular file, empty.
  explicit MappedFile(const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile();

  const std::string& path() const { return path_; }
  std::uint64_t size() const { return size_; }
  // Checked by the caller: [offset, offset + size) lies inside the file.
  std::span<const std::byte> bytes(std::uint64_t offset, std::uint64_t size) const {
    return {data_ + offset, size};
  }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }
  // At any offset, aligned or not.
  template <class T>
  T at(std::uint64_t offset) const {
    T value;
    std::memcpy(&value, data_ + offset, sizeof value);
    return value;
  }

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  std::uint64_t size_ = 0;
};

}  // namespace suite

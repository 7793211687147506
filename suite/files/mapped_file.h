#pragma once
// A read-only mapping of a file, and the error that every reader of a file throws.
//
//   MappedFile file("model.safetensors");
//   const auto length = file.at<std::uint64_t>(0);
//
// Readers check each number before they use it. They cannot detect that another program shortens
// the mapped file, which ends this program with SIGBUS. Writers that rename a complete file into
// place (new_file.h) never shorten it.

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "harness/unit/sweep.h"

namespace suite {

// An error of one line: the file, the wrong field, its value and the expected value.
class FileError : public harness::UsageError {
 public:
  using UsageError::UsageError;
  template <class... Values>
  explicit FileError(fmt::format_string<Values...> text, Values&&... values)
      : UsageError(fmt::format(text, std::forward<Values>(values)...)) {}
};

// Returns a text for one line of a message: control characters escaped, at most 80 bytes.
std::string printable(std::string_view text);
std::string in_quotes(std::string_view text);

class MappedFile {
 public:
  // Throws FileError if the file is missing (with the nearest name), unreadable, not a regular
  // file, or empty.
  explicit MappedFile(const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile();

  const std::string& path() const { return path_; }
  std::uint64_t size() const { return size_; }
  // Returns bytes of the file. The caller checks that [offset, offset + size) is inside the file.
  std::span<const std::byte> bytes(std::uint64_t offset, std::uint64_t size) const {
    return {data_ + offset, size};
  }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }
  // Returns the value at an offset, which need not be aligned.
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

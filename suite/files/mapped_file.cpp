#include "suite/files/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <filesystem>
#include <utility>
#include <vector>

#include "machine/base/names.h"

namespace suite {

static_assert(std::endian::native == std::endian::little, "the formats are little-endian");

namespace {

std::string nearest_file(const std::string& path) {
  std::vector<std::string> neighbours;
  std::error_code ignored;
  const auto folder = std::filesystem::path(path).parent_path();
  for (const auto& entry :
       std::filesystem::directory_iterator(folder.empty() ? "." : folder, ignored))
    neighbours.push_back((folder / entry.path().filename()).string());
  return machine::nearest(path, neighbours);
}

struct Descriptor {
  int number;
  ~Descriptor() {
    if (number >= 0) ::close(number);
  }
};

}  // namespace

std::string printable(std::string_view text) {
  constexpr std::size_t longest = 80;
  std::string result;
  for (const char letter : text.substr(0, longest)) {
    const auto byte = static_cast<unsigned char>(letter);
    if (byte < 0x20 || byte == 0x7f)
      result += fmt::format("\\x{:02x}", byte);
    else
      result += letter;
  }
  if (text.size() <= longest) return result;
  // Do not split a multibyte character.
  while (!result.empty() && (static_cast<unsigned char>(result.back()) & 0xc0) == 0x80)
    result.pop_back();
  if (!result.empty() && static_cast<unsigned char>(result.back()) >= 0xc0) result.pop_back();
  return result + "…";
}

std::string in_quotes(std::string_view text) { return fmt::format("'{}'", printable(text)); }

MappedFile::MappedFile(const std::string& path) : path_(path) {
  // Do not wait for a writer if the file is a pipe.
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.number < 0) {
    const int error = errno;
    const std::string near = error == ENOENT ? nearest_file(path) : "";
    throw FileError("cannot read {}: {}{}", path, std::strerror(error),
                    near.empty() ? "" : fmt::format("; did you mean {}?", near));
  }
  struct stat status {};
  if (::fstat(file.number, &status) != 0)
    throw FileError("cannot read {}: {}", path, std::strerror(errno));
  if (S_ISDIR(status.st_mode))
    throw FileError("cannot read {}: it is a directory, not a file", path);
  if (!S_ISREG(status.st_mode)) throw FileError("cannot read {}: it is not a regular file", path);
  if (status.st_size == 0) throw FileError("{} is empty", path);
  size_ = static_cast<std::uint64_t>(status.st_size);
  void* data = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.number, 0);
  if (data == MAP_FAILED) throw FileError("cannot map {}: {}", path, std::strerror(errno));
  data_ = static_cast<const std::byte*>(data);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace suite

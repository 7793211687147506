#include "zero/checkpoint/open_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "zero/checkpoint/checkpoint.h"

namespace zero {

OpenFile::OpenFile(const std::string& path)
    : path_(path), file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
  if (file_ < 0) refuse(std::strerror(errno));
}

OpenFile::~OpenFile() { ::close(file_); }

void OpenFile::refuse(std::string_view why) const {
  throw CheckpointError(fmt::format("{}: {}", path_, why));
}

std::uint64_t OpenFile::size() const {
  struct stat status {};
  if (::fstat(file_, &status) != 0) refuse(std::strerror(errno));
  if (!S_ISREG(status.st_mode)) refuse("it is not a regular file");
  return static_cast<std::uint64_t>(status.st_size);
}

void OpenFile::read(std::uint64_t offset, void* into, std::size_t bytes) const {
  for (std::size_t done = 0; done < bytes;) {
    const ssize_t got = ::pread(file_, static_cast<char*>(into) + done, bytes - done,
                                static_cast<off_t>(offset + done));
    if (got == 0) refuse("it is truncated");
    if (got < 0 && errno != EINTR) refuse(std::strerror(errno));
    if (got > 0) done += static_cast<std::size_t>(got);
  }
}

}  // namespace zero

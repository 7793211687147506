#include "zero/offload/io_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "machine/base/error.h"

namespace zero {

using machine::MachineError;

// File systems without O_DIRECT reject it in open with EINVAL.
IoFile::IoFile(std::string name, const std::string& path, int flags, unsigned mode)
    : name_(std::move(name)) {
  descriptor_ = ::open(path.c_str(), flags | O_DIRECT | O_CLOEXEC, mode);
  if (descriptor_ >= 0 || errno != EINVAL) return;
  descriptor_ = ::open(path.c_str(), flags | O_CLOEXEC, mode);
  if (descriptor_ >= 0)
    note_ = fmt::format("{} is buffered: the file system rejects O_DIRECT", name_);
}

IoFile IoFile::unnamed(const std::string& folder, std::uint64_t bytes, int rank) {
  const std::string name = fmt::format("the swap file in {} of rank {}", folder, rank);
  IoFile file(name, folder, O_RDWR | O_TMPFILE);
  if (file.descriptor_ < 0 && (errno == EOPNOTSUPP || errno == EISDIR)) {
    // The file system has no O_TMPFILE. Create a file with a name and unlink it.
    const std::string path = fmt::format("{}/shardmark-{}-{}.swap", folder, ::getpid(), rank);
    file = IoFile(name, path, O_RDWR | O_CREAT | O_EXCL);
    if (file.descriptor_ >= 0) ::unlink(path.c_str());
  }
  if (file.descriptor_ < 0)
    throw MachineError(fmt::format("cannot create {}: {}", name, std::strerror(errno)),
                       machine::kind_of_errno(errno));
  struct statvfs space {};
  const auto refuse = [&](int error) {
    if (::fstatvfs(file.descriptor_, &space) != 0) space = {};
    throw MachineError(
        fmt::format("cannot create {} of {} bytes: {} ({} bytes are free)", name, bytes,
                    std::strerror(error), std::uint64_t{space.f_bavail} * space.f_frsize),
        machine::kind_of_errno(error));
  };
  // Check the free space first, because fallocate could fill the file system before it fails.
  if (::fstatvfs(file.descriptor_, &space) == 0 &&
      bytes / std::max<std::uint64_t>(space.f_frsize, 1) > space.f_bavail)
    refuse(ENOSPC);
  if (bytes == 0 || ::fallocate(file.descriptor_, 0, 0, static_cast<off_t>(bytes)) == 0)
    return file;
  if (errno != EOPNOTSUPP || ::ftruncate(file.descriptor_, static_cast<off_t>(bytes)) != 0)
    refuse(errno);
  return file;
}

IoFile IoFile::created(const std::string& path, int rank) {
  IoFile file(fmt::format("{} of rank {}", path, rank), path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (file.descriptor_ < 0)
    throw MachineError(fmt::format("cannot create {}: {}", file.name_, std::strerror(errno)),
                       machine::kind_of_errno(errno));
  return file;
}

IoFile IoFile::existing(const std::string& path, bool writable, int rank) {
  IoFile file(fmt::format("{} of rank {}", path, rank), path, writable ? O_RDWR : O_RDONLY);
  if (file.descriptor_ < 0)
    throw MachineError(fmt::format("cannot open {}: {}", file.name_, std::strerror(errno)));
  return file;
}

IoFile::IoFile(IoFile&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)),
      name_(std::move(other.name_)),
      note_(std::move(other.note_)) {}

IoFile& IoFile::operator=(IoFile&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(name_, other.name_);
  std::swap(note_, other.note_);
  return *this;
}

IoFile::~IoFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

}  // namespace zero

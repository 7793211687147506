#include "suite/files/new_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <utility>

#include "machine/base/error.h"

namespace suite {
namespace {

constexpr std::size_t flush_at = 1u << 20;

}  // namespace

NewFile::NewFile(const std::string& path)
    : path_(path), beside_(fmt::format("{}.{}.tmp", path, ::getpid())) {
  if (path.empty()) throw FileError("cannot write to '': expected a file name");
  struct stat status {};
  // A rename would fail late for a directory, and replace a device.
  if (::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode))
    throw FileError("cannot write to {}: it exists and is not a regular file", path);
  file_ = ::open(beside_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file_ < 0) refuse(errno);
}

NewFile::~NewFile() {
  if (file_ < 0) return;
  ::close(file_);
  ::unlink(beside_.c_str());
}

void NewFile::refuse(int error) const {
  const std::string line = fmt::format("cannot write to {}: {}", path_, std::strerror(error));
  for (const int of_machine : {ENOSPC, EDQUOT, EROFS, EIO, EACCES, EPERM})
    if (error == of_machine) throw machine::MachineError(line, machine::kind_of_errno(error));
  throw FileError(line);
}

void NewFile::flush() {
  for (std::size_t done = 0; done < pending_.size();) {
    const ssize_t wrote = ::write(file_, pending_.data() + done, pending_.size() - done);
    if (wrote >= 0)
      done += static_cast<std::size_t>(wrote);
    else if (errno != EINTR)
      refuse(errno);
  }
  pending_.clear();
}

void NewFile::write(const void* data, std::size_t size) {
  const char* bytes = static_cast<const char*>(data);
  pending_.insert(pending_.end(), bytes, bytes + size);
  if (pending_.size() >= flush_at) flush();
}

void NewFile::sync() {
  flush();
  if (::fsync(file_) != 0) refuse(errno);
  synced_ = true;
}

void NewFile::commit() {
  if (!synced_ || !pending_.empty()) sync();
  if (::close(std::exchange(file_, -1)) != 0 || ::rename(beside_.c_str(), path_.c_str()) != 0) {
    const int error = errno;
    ::unlink(beside_.c_str());
    refuse(error);
  }
  // Sync the folder to store the new name. Some file systems cannot sync folders.
  const auto parent = std::filesystem::path(path_).parent_path();
  const int folder = ::open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_CLOEXEC);
  if (folder >= 0) {
    ::fsync(folder);
    ::close(folder);
  }
}

void check_writable(const std::string& path) { const NewFile file(path); }

}  // namespace suite

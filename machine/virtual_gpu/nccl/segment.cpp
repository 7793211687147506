#include "machine/virtual_gpu/nccl/segment.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "machine/virtual_gpu/nccl/reduce.h"

namespace machine::virtual_gpu::nccl {
namespace {

struct Id {
  char kind[8];
  int process, file;
  std::uint64_t nonce;
};
constexpr char id_kind[8] = {'v', 'g', 'p', 'u', 'n', 'c', 'c', 'l'};
static_assert(sizeof(Id) <= sizeof(ncclUniqueId) && std::is_trivially_destructible_v<Segment>);

Id contents(const ncclUniqueId& id) {
  Id result;
  std::memcpy(&result, id.internal, sizeof result);
  return result;
}

// Opens a file of a process. The caller closes it.
int open_of(int process, int file, int flags) {
  return ::open(fmt::format("/proc/{}/fd/{}", process, file).c_str(), flags | O_CLOEXEC);
}

std::shared_ptr<Segment> map(int file) {
  void* memory = ::mmap(nullptr, sizeof(Segment), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) return nullptr;
  return {static_cast<Segment*>(memory), [](Segment* base) { ::munmap(base, sizeof(Segment)); }};
}

}  // namespace

const Shape& shape(Kind kind) {
  static constexpr Shape shapes[] = {
      {"ncclAllReduce", false, false, false, false, true},
      {"ncclBroadcast", true, false, false, false, false},
      {"ncclReduce", false, true, false, false, true},
      {"ncclAllGather", false, false, false, true, false},
      {"ncclReduceScatter", false, false, true, false, true},
      {"ncclAlltoAll", false, false, true, true, false},
      {"ncclGather", false, true, false, true, false},
      {"ncclScatter", true, false, true, false, false},
      {"ncclSend", false, false, false, false, false},
      {"ncclRecv", false, false, false, false, false},
  };
  return shapes[static_cast<std::size_t>(kind)];
}

std::string text_of(const Call& call) {
  const Shape& how = shape(call.kind);
  std::string text = fmt::format("{} of {} {}", how.call, call.count, name(call.type));
  if (how.reduces) text += fmt::format(", {}", name(call.op));
  if (how.from_root || how.to_root) text += fmt::format(", root {}", call.peer);
  if (call.kind == Kind::send) text += fmt::format(" to rank {}", call.peer);
  if (call.kind == Kind::receive) text += fmt::format(" from rank {}", call.peer);
  return text;
}

bool make_segment(ncclUniqueId& id) {
  static std::atomic<std::uint64_t> made{0};
  Id mine{{}, ::getpid(), ::memfd_create("virtual_nccl", MFD_CLOEXEC), ++made};
  std::memcpy(mine.kind, id_kind, sizeof id_kind);
  if (mine.file < 0 || ::ftruncate(mine.file, sizeof(Segment)) != 0) return false;
  const auto segment = map(mine.file);
  if (!segment) return false;
  segment->nonce = mine.nonce;
  std::memset(&id, 0, sizeof id);
  std::memcpy(id.internal, &mine, sizeof mine);
  return true;
}

void close_segment(const ncclUniqueId& id) {
  const Id of = contents(id);
  if (of.process == ::getpid()) ::close(of.file);
}

std::shared_ptr<Segment> open_segment(const ncclUniqueId& id) {
  const Id of = contents(id);
  if (std::memcmp(of.kind, id_kind, sizeof id_kind) != 0) return nullptr;
  const int file = open_of(of.process, of.file, O_RDWR);
  if (file < 0) return nullptr;
  struct ::stat about;
  const bool whole = ::fstat(file, &about) == 0 && about.st_size == sizeof(Segment);
  auto segment = whole ? map(file) : nullptr;
  ::close(file);
  return segment && segment->nonce == of.nonce ? segment : nullptr;
}

bool read_file(int process, int file, std::uint64_t offset, void* to, std::size_t bytes) {
  const bool own = process == ::getpid();
  const int from = own ? file : open_of(process, file, O_RDONLY);
  auto* at = static_cast<std::byte*>(to);
  while (from >= 0 && bytes > 0) {
    const ssize_t got = ::pread(from, at, bytes, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    at += got;
    offset += static_cast<std::uint64_t>(got);
    bytes -= static_cast<std::size_t>(got);
  }
  if (!own && from >= 0) ::close(from);
  return bytes == 0;
}

// A process that has ended may still have an entry, until its parent has waited for it.
bool has_ended(int process) {
  if (process == ::getpid()) return false;
  const int file = static_cast<int>(::syscall(SYS_pidfd_open, process, 0));
  if (file < 0) return errno == ESRCH;
  pollfd ended{file, POLLIN, 0};
  const bool result = ::poll(&ended, 1, 0) > 0;
  ::close(file);
  return result;
}

}  // namespace machine::virtual_gpu::nccl

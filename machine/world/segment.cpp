#include "machine/world/segment.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "machine/base/error.h"

namespace machine {
namespace {

constexpr std::size_t alignment = 64, page = 4096;

std::byte* map(int descriptor, std::size_t size, const std::string& whose) {
  void* base =
      mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, descriptor, 0);
  if (base == MAP_FAILED)
    throw MachineError(fmt::format("cannot map {} bytes of shared memory of {}: {}", size, whose,
                                   std::strerror(errno)));
  madvise(base, size,
          MADV_HUGEPAGE);  // no effect if the kernel grants shared memory no huge pages
  return static_cast<std::byte*>(base);
}

// Large blocks start on a page, small ones on a cache line.
std::size_t block_bytes(std::size_t bytes) {
  return round_up(bytes, bytes >= page ? page : alignment);
}

}  // namespace

Segment::Segment(std::size_t header) {
  size_ = static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) *
          static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  descriptor_ = memfd_create("shardmark", MFD_CLOEXEC);
  if (descriptor_ < 0 || ftruncate(descriptor_, static_cast<off_t>(size_)) != 0)
    throw MachineError(fmt::format("cannot create a shared-memory segment of {} bytes: {}", size_,
                                   std::strerror(errno)));
  base_ = map(descriptor_, size_, "this rank");
  free_.give(round_up(header, page), size_ - round_up(header, page));
}

Segment::~Segment() {
  munmap(base_, size_);
  close(descriptor_);
}

void* Segment::allocate(std::size_t bytes) {
  const auto offset = free_.take(block_bytes(bytes), bytes >= page ? page : alignment);
  return offset ? base_ + *offset : nullptr;
}

void Segment::free(void* data, std::size_t bytes) {
  free_.give(static_cast<std::size_t>(static_cast<std::byte*>(data) - base_), block_bytes(bytes));
}

MappedSegment::MappedSegment(long pid, int descriptor, std::size_t size) : size_(size) {
  const std::string path = fmt::format("/proc/{}/fd/{}", pid, descriptor);
  const int opened = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (opened < 0)
    throw MachineError(
        fmt::format("cannot open the shared memory of process {}: {}", pid, std::strerror(errno)));
  base_ = map(opened, size, fmt::format("process {}", pid));
  close(opened);
}

MappedSegment::~MappedSegment() { munmap(base_, size_); }

}  // namespace machine

#include "zero/checkpoint/direct_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "machine/base/error.h"
#include "zero/checkpoint/checkpoint.h"

namespace zero {
namespace {

constexpr std::size_t slot_bytes = std::size_t{4} << 20;
// Other ranks need the rest of the disk.
constexpr std::uint64_t reserved_at_once = std::uint64_t{64} << 20;
static_assert(reserved_at_once % slot_bytes == 0);

[[noreturn]] void refuse(std::string_view doing, const std::string& path) {
  throw CheckpointError(fmt::format("cannot {} {}: {}", doing, path, std::strerror(errno)),
                        machine::kind_of_errno(errno));
}

// Errors of the file and the ring are errors of the checkpoint.
template <class Call>
auto checked(const Call& call) {
  try {
    return call();
  } catch (const machine::MachineError& error) {
    throw CheckpointError(error.what(), error.failure().kind);
  }
}

}  // namespace

DirectWriter::DirectWriter(const std::string& path, int rank, bool by_ring)
    : path_(path),
      file_(checked([&] { return IoFile::created(path, rank); })),
      host_(machine::make_host_device()) {
  for (Slot& slot : slots_)
    slot.memory = aligned_memory(*host_, Dtype::uint8, slot_bytes, Category::buffers);
  if (!by_ring) return;
  IoOptions options;
  options.rank = rank;
  ring_ = ring_if_available(options);
}

DirectWriter::~DirectWriter() {
  if (finished_) return;
  ring_.reset();
  ::unlink(path_.c_str());
}

void DirectWriter::wait(Slot& slot) {
  if (const IoRing::Ticket ticket = std::exchange(slot.ticket, 0))
    checked([&] { ring_->wait(ticket); });
}

void DirectWriter::write(const void* data, std::size_t bytes) {
  const auto* from = static_cast<const std::byte*>(data);
  bytes_ += bytes;
  while (bytes > 0) {
    Slot& slot = slots_[current_];
    wait(slot);
    const std::size_t part = std::min(bytes, slot_bytes - filled_);
    std::memcpy(static_cast<std::byte*>(slot.memory.data()) + filled_, from, part);
    filled_ += part;
    from += part;
    bytes -= part;
    if (filled_ == slot_bytes) write_slot(slot_bytes);
  }
}

// Writes inside the file run at once; those that extend it wait for each other in some file
// systems. Where the system cannot reserve, writes extend the file.
void DirectWriter::reserve(std::uint64_t end) {
  if (end > reserved_ && ::fallocate(file_.descriptor(), 0, static_cast<off_t>(reserved_),
                                     static_cast<off_t>(reserved_at_once)) == 0)
    reserved_ += reserved_at_once;
}

void DirectWriter::write_slot(std::size_t bytes) {
  reserve(begun_ + bytes);
  Slot& slot = slots_[current_];
  if (ring_) {
    slot.ticket =
        ring_->write(file_, begun_, slot.memory.slice(0, {static_cast<std::int64_t>(bytes)}));
  } else {
    const auto* const from = static_cast<const std::byte*>(slot.memory.data());
    for (std::size_t done = 0; done < bytes;) {
      const ssize_t wrote = ::pwrite(file_.descriptor(), from + done, bytes - done,
                                     static_cast<off_t>(begun_ + done));
      if (wrote > 0)
        done += static_cast<std::size_t>(wrote);
      else if (wrote == 0 || errno != EINTR)
        refuse("write", path_);
    }
  }
  begun_ += bytes;
  current_ = (current_ + 1) % slots_.size();
  filled_ = 0;
}

// The last slot is written to the next multiple of io_alignment, then the file is cut.
void DirectWriter::finish() {
  if (filled_ > 0) {
    const std::size_t whole = (filled_ + io_alignment - 1) / io_alignment * io_alignment;
    std::memset(static_cast<std::byte*>(slots_[current_].memory.data()) + filled_, 0,
                whole - filled_);
    write_slot(whole);
  }
  for (Slot& slot : slots_) wait(slot);
  if (std::max(begun_, reserved_) != bytes_ &&
      ::ftruncate(file_.descriptor(), static_cast<off_t>(bytes_)) != 0)
    refuse("cut", path_);
  if (::fsync(file_.descriptor()) != 0) refuse("sync", path_);
  finished_ = true;
}

}  // namespace zero

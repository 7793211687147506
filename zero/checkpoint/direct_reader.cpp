#include "zero/checkpoint/direct_reader.h"

#include <algorithm>
#include <vector>

#include "machine/base/error.h"
#include "zero/checkpoint/checkpoint.h"
#include "zero/checkpoint/open_file.h"
#include "zero/offload/io_file.h"

namespace zero {
namespace {

constexpr std::size_t least_direct = std::size_t{1} << 20;
constexpr std::uint64_t part_bytes = std::uint64_t{8} << 20;  // a multiple of io_alignment

constexpr std::uint64_t down(std::uint64_t bytes) { return bytes / io_alignment * io_alignment; }
constexpr std::uint64_t up(std::uint64_t bytes) { return down(bytes + io_alignment - 1); }

}  // namespace

// Keeps the memory for the next call, because new pages take time, too.
std::byte* DirectReader::room(std::size_t bytes) {
  if (!memory_ || memory_.bytes() < bytes) {
    memory_ = {};
    if (!host_) host_ = machine::make_host_device();
    memory_ = aligned_memory(*host_, Dtype::uint8, bytes, Category::buffers);
  }
  return static_cast<std::byte*>(memory_.data());
}

bool DirectReader::has_ring() {
  if (by_ring_ && !ring_) ring_ = ring_if_available({});
  by_ring_ = ring_ != nullptr;
  return by_ring_;
}

const std::byte* DirectReader::read(const std::string& path, std::uint64_t offset,
                                    std::size_t bytes, const Arrived& arrived) {
  const OpenFile file(path);
  // The memory has the file's alignment, so that the kernel writes to the right place.
  const std::uint64_t begin = down(offset), end = offset + bytes;
  std::byte* const memory = room(static_cast<std::size_t>(up(end) - begin));
  std::byte* const wanted = memory + (offset - begin);
  const auto pass_on = [&](std::uint64_t from, std::uint64_t to) {
    from = std::max(from, offset);
    to = std::min(to, end);
    if (from < to) arrived(memory + (from - begin), static_cast<std::size_t>(to - from));
  };
  const bool direct = bytes >= least_direct && has_ring();
  // A block that passes the end of the file would be an error.
  const std::uint64_t direct_end = direct ? std::min(up(end), down(file.size())) : begin;
  if (direct_end > begin) try {
      const IoFile past_cache = IoFile::existing(path, false, 0);
      std::vector<IoRing::Ticket> tickets;
      for (std::uint64_t at = begin; at < direct_end; at += part_bytes)
        tickets.push_back(ring_->read(
            past_cache, at,
            memory_.slice(static_cast<std::int64_t>(at - begin),
                          {static_cast<std::int64_t>(std::min(part_bytes, direct_end - at))})));
      std::uint64_t at = begin;
      for (const IoRing::Ticket ticket : tickets) {
        ring_->wait(ticket);
        pass_on(at, std::min(at + part_bytes, direct_end));
        at += part_bytes;
      }
    } catch (const machine::MachineError& error) {
      ring_.reset();  // waits for the other parts
      throw CheckpointError(error.what(), error.failure().kind);
    }
  const std::uint64_t rest = std::max(offset, direct_end);
  if (rest < end) {
    file.read(rest, memory + (rest - begin), static_cast<std::size_t>(end - rest));
    pass_on(rest, end);
  }
  return wanted;
}

}  // namespace zero

#include "zero/offload/swap_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "machine/base/checksum.h"
#include "machine/base/error.h"

namespace zero {
namespace {

std::vector<std::uint32_t> checksums(const Tensor& memory, std::size_t block_size) {
  std::vector<std::uint32_t> sums;
  const auto* data = static_cast<const std::byte*>(memory.data());
  for (std::size_t at = 0; at < memory.bytes(); at += block_size)
    sums.push_back(wide_checksum(data + at, std::min(block_size, memory.bytes() - at)));
  return sums;
}

}  // namespace

SwapFile::SwapFile(const SwapOptions& options, std::int64_t slots, std::size_t slot_bytes,
                   const std::vector<Tensor>& buffers)
    : slot_bytes_(slot_bytes),
      slots_(static_cast<std::size_t>(slots)),
      file_(IoFile::unnamed(options.folder, static_cast<std::uint64_t>(slots) * slot_bytes,
                            options.io.rank)),
      ring_(options.io) {
  if (!buffers.empty()) why_not_mapped_ = ring_.register_memory(buffers);
}

SwapFile::Slot& SwapFile::idle_slot(std::int64_t slot, const Tensor& memory) {
  Slot& found = slots_.at(static_cast<std::size_t>(slot));
  SHARDMARK_CHECK(found.ticket, ==, IoRing::Ticket{0});
  SHARDMARK_CHECK(memory.bytes(), <=, slot_bytes_);
  return found;
}

void SwapFile::start_write(std::int64_t index, const Tensor& from) {
  Slot& slot = idle_slot(index, from);
  slot.checksums = checksums(from, ring_.options().block_size);
  slot.bytes = from.bytes();
  slot.reading = false;
  slot.ticket = ring_.write(file_, offset(index), from);
}

void SwapFile::start_read(std::int64_t index, const Tensor& into) {
  Slot& slot = idle_slot(index, into);
  SHARDMARK_CHECK(slot.checksums.empty(), ==, false);
  SHARDMARK_CHECK(into.bytes(), ==, slot.bytes);
  slot.reading = true;
  slot.memory = into;
  slot.ticket = ring_.read(file_, offset(index), into);
}

void SwapFile::finish(std::int64_t index) {
  Slot& slot = slots_.at(static_cast<std::size_t>(index));
  if (slot.ticket == 0) return;
  ring_.wait(std::exchange(slot.ticket, 0));
  if (!slot.reading) return;
  const Tensor memory = std::exchange(slot.memory, {});
  const std::size_t block = ring_.options().block_size;
  const std::vector<std::uint32_t> found = checksums(memory, block);
  for (std::size_t i = 0; i < found.size(); ++i)
    if (found[i] != slot.checksums[i])
      throw machine::MachineError(
          fmt::format("{}: the block at {} is not what was written there (its checksum is {:08x}, "
                      "not {:08x})",
                      file_.name(), offset(index) + i * block, found[i], slot.checksums[i]));
}

std::string SwapFile::note() const { return file_.note().empty() ? why_not_mapped_ : file_.note(); }

}  // namespace zero

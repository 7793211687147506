#pragma once
// A new file that is written in order past the page cache, as in FastPersist (Wang et al. 2024,
// arXiv:2406.13768): bytes are copied to aligned slots, and full slots are written while the next
// one is filled. Without io_uring each slot is written before the next one is filled. A file system
// that rejects O_DIRECT buffers the writes.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "machine/device/device.h"
#include "machine/device/tensor.h"
#include "zero/offload/io_file.h"
#include "zero/offload/io_ring.h"

namespace zero {

// For one thread. Errors are CheckpointError with one line that names the file.
class DirectWriter {
 public:
  // Creates the file, or empties an existing one. rank: for messages.
  DirectWriter(const std::string& path, int rank, bool by_ring = true);
  DirectWriter(const DirectWriter&) = delete;
  DirectWriter& operator=(const DirectWriter&) = delete;
  ~DirectWriter();  // removes the file unless finish was called

  void write(const void* data, std::size_t bytes);
  std::uint64_t bytes() const { return bytes_; }
  void finish();  // syncs the file

 private:
  struct Slot {
    Tensor memory;
    IoRing::Ticket ticket = 0;  // 0: not being written
  };
  void reserve(std::uint64_t end);
  void write_slot(std::size_t bytes);
  void wait(Slot& slot);

  std::string path_;
  bool finished_ = false;
  IoFile file_;
  std::unique_ptr<machine::Device> host_;
  std::array<Slot, 4> slots_;
  std::unique_ptr<IoRing> ring_;          // after the slots: waits for writes from them
  std::size_t current_ = 0, filled_ = 0;  // the slot to fill, and its bytes
  std::uint64_t reserved_ = 0;            // by the file system
  std::uint64_t begun_ = 0, bytes_ = 0;   // of the file: in slots that are written, and given
};

}  // namespace zero

#pragma once
// A file for memory that is swapped out and in again asynchronously (io_ring.h), in slots of equal
// size. Every block's checksum stays in memory, so a read returns the written data or throws.
//
//   SwapFile swap({.folder = "/nvme"}, slots, bytes);
//   swap.start_write(3, buffer);  …  swap.finish(3);
//   swap.start_read(3, buffer);   …  swap.finish(3);
//
// The file has no name (IoFile::unnamed), so it disappears however the process ends.
//
// All errors are machine::MachineError, in one line that names the file and the rank: those of
// IoFile and IoRing, and a block with a wrong checksum. Checksums take 4 bytes a block of
// block_size and are not on the ledger.

#include <cstdint>
#include <string>
#include <vector>

#include "zero/offload/io_file.h"
#include "zero/offload/io_ring.h"

namespace zero {

struct SwapOptions {
  std::string folder = ".";  // DeepSpeed's nvme_path
  IoOptions io = {};
};

class SwapFile {
 public:
  // slot_bytes: a multiple of io_alignment. buffers: the memory of all transfers, which the kernel
  // maps once.
  SwapFile(const SwapOptions& options, std::int64_t slots, std::size_t slot_bytes,
           const std::vector<Tensor>& buffers);

  // At most one transfer may be pending for a slot. A write has at most slot_bytes; a read has as
  // many bytes as the slot's last write.
  void start_write(std::int64_t index, const Tensor& from);
  void start_read(std::int64_t index, const Tensor& into);
  void finish(std::int64_t index);  // does nothing if no transfer is pending

  std::string note() const;  // for the record; empty: direct, buffers mapped
  IoCounts counts() const { return ring_.counts(); }
  int descriptor() const { return file_.descriptor(); }  // for tests

 private:
  struct Slot {
    IoRing::Ticket ticket = 0;  // 0: no transfer is pending
    bool reading = false;
    Tensor memory;
    std::vector<std::uint32_t> checksums;  // of the blocks; empty: never written
    std::size_t bytes = 0;
  };
  std::uint64_t offset(std::int64_t slot) const {
    return static_cast<std::uint64_t>(slot) * slot_bytes_;
  }
  Slot& idle_slot(std::int64_t slot, const Tensor& memory);

  std::size_t slot_bytes_;
  std::vector<Slot> slots_;
  IoFile file_;
  IoRing ring_;
  std::string why_not_mapped_;
};

}  // namespace zero

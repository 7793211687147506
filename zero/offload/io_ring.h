#pragma once
// Asynchronous reads and writes through io_uring (Axboe 2019, "Efficient IO with io_uring"):
//
//   IoRing ring({.block_size = 1 << 20, .queue_depth = 8});
//   auto reading = ring.read(file, 0, ahead);
//   auto writing = ring.write(file, 1 << 30, done);
//   … compute …
//   ring.wait(reading);
//
// A transfer is cut into blocks, and at most queue_depth blocks are under way at any time, those of
// earlier transfers first; a thread of its own keeps it so while the caller computes. Memory must
// stay as it is until the transfer was waited for; it is kept alive as long. A block that comes
// back short is continued where it ended; one that ends where the file does, or between two
// alignments, is an error. All calls from one thread.
//
// Options are those of DeepSpeed's `aio`, with its defaults.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "machine/device/tensor.h"
#include "zero/offload/io_file.h"

namespace zero {

using machine::Category, machine::Dtype, machine::Tensor;

struct IoOptions {
  std::size_t block_size = std::size_t{1} << 20;  // bytes, a multiple of io_alignment
  int queue_depth = 8;
  bool single_submit = false;  // every block by itself, not as many as there is room for
  double timeout_s = 60;       // without a block coming back
  int rank = 0;                // for messages
  // For tests. Ask the kernel for no more bytes at once (0: all), as if it had given no more; begin
  // a write only when it is waited for.
  std::size_t most_bytes = 0;
  bool late_writes = false;
};

struct IoCounts {
  std::uint64_t reads = 0, writes = 0, bytes_read = 0, bytes_written = 0;  // blocks and bytes
  int most_under_way = 0;                                                  // blocks
  bool operator==(const IoCounts&) const = default;
};

class IoRing {
 public:
  // Why no ring can be made here, or empty: a build without liburing, a kernel without io_uring, a
  // container that forbids it.
  static std::string why_not();

  // Throws std::invalid_argument naming the option; machine::MachineError saying why_not().
  explicit IoRing(const IoOptions& options);
  // Waits for what is under way, no longer than the timeout; then takes it back.
  ~IoRing();
  IoRing(IoRing&&) = delete;

  // Memory that many transfers will use is mapped by the kernel once; returns nothing, or why it
  // was not: transfers go on without. Once, before any transfer.
  std::string register_memory(const std::vector<Tensor>& memory);

  // The bytes of the tensor, host memory. Its address, its size and the offset are multiples of
  // io_alignment.
  using Ticket = std::uint64_t;
  Ticket read(const IoFile& file, std::uint64_t offset, const Tensor& into);
  Ticket write(const IoFile& file, std::uint64_t offset, const Tensor& from);
  // Until the transfer is done; once for each. Throws machine::MachineError naming the file, the
  // rank and the offset, machine::Timeout when nothing comes back.
  void wait(Ticket ticket);

  const IoOptions& options() const { return options_; }
  IoCounts counts() const;  // of what was asked for; a continued block counts once

 private:
  struct Engine;
  IoOptions options_;
  std::unique_ptr<Engine> engine_;
};

void check(const IoOptions& options);  // as the constructor does; makes nothing
// What the kernel's error says of buffers of which the largest has so many bytes; locked: those
// that RLIMIT_MEMLOCK lets this process lock.
std::string why_not_mapped(int error, std::size_t largest, std::uint64_t locked);
// Elements of memory on the host that begin at a multiple of io_alignment: `bytes`, a multiple of
// it as well, of an allocation of aligned_bytes(bytes).
Tensor aligned_memory(machine::Device& device, Dtype dtype, std::size_t bytes, Category category);
constexpr std::size_t aligned_bytes(std::size_t bytes) { return bytes + io_alignment; }

}  // namespace zero

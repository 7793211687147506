#pragma once
// Asynchronous reads and writes through io_uring (Axboe 2019, "Efficient IO with io_uring"):
//
//   IoRing ring({.block_size = 1 << 20, .queue_depth = 8});
//   auto reading = ring.read(file, 0, ahead);
//   auto writing = ring.write(file, 1 << 30, done);
//   … compute …
//   ring.wait(reading);
//
// A transfer is split into blocks. At most queue_depth blocks are pending at any time, those of
// earlier transfers first. A separate thread submits them while the caller computes. Memory must
// not change until wait returns for its transfer; the ring keeps it alive until then. The rest of a
// short block is submitted again. A block that ends at the end of the file, or not at a multiple of
// io_alignment, is an error. All calls must come from one thread.
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
  bool single_submit = false;  // submit every block separately, not in batches
  double timeout_s = 60;       // without a completed block
  int rank = 0;                // for messages
  // For tests. most_bytes limits a request to the kernel, to simulate short transfers (0: no
  // limit). late_writes starts a write only when the caller waits for it.
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
  // Returns an empty text, or the reason why no ring is available: a build without liburing, a
  // kernel without io_uring, or a container that forbids it.
  static std::string why_not();

  // Throws std::invalid_argument that names the option, or machine::MachineError with why_not().
  explicit IoRing(const IoOptions& options);
  // Waits for pending blocks up to the timeout, then cancels them.
  ~IoRing();
  IoRing(IoRing&&) = delete;

  // Lets the kernel map memory that many transfers use. Returns an empty text, or the reason of a
  // failure. Transfers also work without the mapping. Call it once, before any transfer.
  std::string register_memory(const std::vector<Tensor>& memory);

  // Start a transfer of all bytes of a tensor in host memory. Its address, its size and the offset
  // are multiples of io_alignment.
  using Ticket = std::uint64_t;
  Ticket read(const IoFile& file, std::uint64_t offset, const Tensor& into);
  Ticket write(const IoFile& file, std::uint64_t offset, const Tensor& from);
  // Waits until the transfer is done. Call it once for each transfer. Throws machine::MachineError
  // that names the file, the rank and the offset, or machine::Timeout.
  void wait(Ticket ticket);

  const IoOptions& options() const { return options_; }
  IoCounts counts() const;  // of requested transfers; a continued block counts once

 private:
  struct Engine;
  IoOptions options_;
  std::unique_ptr<Engine> engine_;
};

void check(const IoOptions& options);  // throws like the constructor
// Returns null where the constructor would throw because no ring is available.
std::unique_ptr<IoRing> ring_if_available(const IoOptions& options);
// Returns a message for the kernel's error. largest: bytes of the largest buffer; locked: the bytes
// that RLIMIT_MEMLOCK lets this process lock.
std::string why_not_mapped(int error, std::size_t largest, std::uint64_t locked);
// Allocates aligned_bytes(bytes) of host memory and returns `bytes` of it that begin at a multiple
// of io_alignment. `bytes` must also be such a multiple.
Tensor aligned_memory(machine::Device& device, Dtype dtype, std::size_t bytes, Category category);
constexpr std::size_t aligned_bytes(std::size_t bytes) { return bytes + io_alignment; }

}  // namespace zero

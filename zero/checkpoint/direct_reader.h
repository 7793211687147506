#pragma once
// Reads large parts of files past the page cache, through io_uring. Small parts, those at the end
// of a file and all without io_uring are read as usual.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "machine/device/device.h"
#include "machine/device/tensor.h"
#include "zero/offload/io_ring.h"

namespace zero {

// For one thread.
class DirectReader {
 public:
  explicit DirectReader(bool by_ring = true) : by_ring_(by_ring) {}
  // Called with consecutive parts as they arrive. All but the last are a multiple of 64 bytes if
  // the offset is.
  using Arrived = std::function<void(const void* part, std::size_t bytes)>;
  // Returns the bytes, which are valid until the next call. Throws CheckpointError that names the
  // file.
  const std::byte* read(const std::string& path, std::uint64_t offset, std::size_t bytes,
                        const Arrived& arrived);

 private:
  std::byte* room(std::size_t bytes);
  bool has_ring();

  bool by_ring_;
  std::unique_ptr<machine::Device> host_;
  Tensor memory_;
  std::unique_ptr<IoRing> ring_;  // after the memory: waits for reads into it
};

}  // namespace zero

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "machine/base/error.h"
#include "machine/base/reject.h"
#include "zero/offload/io_ring.h"

namespace zero {

void check(const IoOptions& options) {
  if (options.block_size == 0 || options.block_size % io_alignment != 0 ||
      options.block_size > std::size_t{1} << 30)
    machine::reject("block_size is {}; expected a multiple of {} bytes, at most 1 GiB",
                    options.block_size, io_alignment);
  if (options.queue_depth < 1 || options.queue_depth > 4096)
    machine::reject("queue_depth is {}; expected 1 to 4096", options.queue_depth);
}

std::string why_not_mapped(int error, std::size_t largest, std::uint64_t locked) {
  constexpr std::size_t most = std::size_t{1} << 30;  // per buffer, in all kernels so far
  const std::string what = "buffers are not mapped by the kernel: ";
  if (largest > most) return what + fmt::format("one has {} bytes (maximum {})", largest, most);
  if (error == ENOMEM) return what + fmt::format("RLIMIT_MEMLOCK is too small ({} bytes)", locked);
  return what + std::strerror(error);
}

std::unique_ptr<IoRing> ring_if_available(const IoOptions& options) {
  try {
    return std::make_unique<IoRing>(options);
  } catch (const machine::MachineError&) {
    return nullptr;
  }
}

Tensor aligned_memory(machine::Device& device, Dtype dtype, std::size_t bytes, Category category) {
  const std::size_t size = machine::size_of(dtype);
  SHARDMARK_CHECK(bytes % io_alignment, ==, std::size_t{0});
  SHARDMARK_CHECK(device.readable_by_host(), ==, true);
  const Tensor whole(device, dtype, {static_cast<std::int64_t>(aligned_bytes(bytes) / size)},
                     category);
  const std::size_t past = reinterpret_cast<std::uintptr_t>(whole.data()) % io_alignment;
  const std::size_t skipped = past == 0 ? 0 : io_alignment - past;
  // In pages of 4 KiB, a block needs a request with hundreds of segments, or several requests. Huge
  // pages reduce it to one request with few segments. Without huge pages the call has no effect.
  ::madvise(static_cast<std::byte*>(whole.data()) + skipped, bytes, MADV_HUGEPAGE);
  return whole.slice(static_cast<std::int64_t>(skipped / size),
                     {static_cast<std::int64_t>(bytes / size)});
}

}  // namespace zero

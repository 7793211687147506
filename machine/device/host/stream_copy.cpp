#include "machine/device/host/stream_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "machine/device/host/streaming.h"

namespace machine::host {

void stream_copy(void* to, const void* from, std::size_t bytes) {
  auto* target = static_cast<std::byte*>(to);
  const auto* source = static_cast<const std::byte*>(from);
  const std::size_t past = reinterpret_cast<std::uintptr_t>(to) % line_bytes;
  const std::size_t head = std::min(bytes, past == 0 ? 0 : line_bytes - past);
  if (head > 0) std::memcpy(target, source, head);
  std::size_t i = head;
  for (; i + line_bytes <= bytes; i += line_bytes) stream_line(target + i, source + i);
  if (i < bytes) std::memcpy(target + i, source + i, bytes - i);
  end_streaming();
}

}  // namespace machine::host

#pragma once
// Checksums of bytes that leave memory. CRC-32C (Castagnoli et al. 1993, doi:10.1109/26.231911)
// finds every single flipped bit, and every burst of up to 32 bits, for any length.

#include <array>
#include <cstddef>
#include <cstdint>

namespace zero {

// "123456789" gives 0xe3069283. Eight bytes per instruction if the processor supports CRC-32C.
std::uint32_t crc32c(const void* data, std::size_t bytes, std::uint32_t before = 0);

// For large data: eight independent CRC-32Cs, of the 8-byte words i, i + 8, i + 16, …, then the
// CRC-32C of these eight and of the remaining bytes. The processor need not wait for one word
// before the next, and every single flipped bit still changes the result.
std::uint32_t wide_checksum(const void* data, std::size_t bytes);

// wide_checksum of bytes that come in parts. Each part except the last is a multiple of 64 bytes.
class WideChecksum {
 public:
  void add(const void* data, std::size_t bytes);
  std::uint32_t value() const;

 private:
  std::array<std::uint32_t, 8> sums_ = {~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u};
  std::array<std::uint8_t, 64> rest_{};
  std::size_t rest_bytes_ = 0;
};

namespace software {  // the same values from a table, on any processor
std::uint32_t crc32c(const void* data, std::size_t bytes, std::uint32_t before = 0);
std::uint32_t wide_checksum(const void* data, std::size_t bytes);
}  // namespace software

}  // namespace zero

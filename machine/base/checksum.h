#pragma once
// Checksums of bytes that leave memory. CRC-32C (Castagnoli et al. 1993, doi:10.1109/26.231911)
// finds every single flipped bit, and every burst of up to 32 bits, for any length.

#include <cstddef>
#include <cstdint>

namespace zero {

// "123456789" gives 0xe3069283. Eight bytes per instruction if the processor supports CRC-32C.
std::uint32_t crc32c(const void* data, std::size_t bytes, std::uint32_t before = 0);

// For large data: eight independent CRC-32Cs, of the 8-byte words i, i + 8, i + 16, …, then the
// CRC-32C of these eight and of the remaining bytes. The processor need not wait for one word
// before the next, and every single flipped bit still changes the result.
std::uint32_t wide_checksum(const void* data, std::size_t bytes);

namespace software {  // the same values from a table, on any processor
std::uint32_t crc32c(const void* data, std::size_t bytes, std::uint32_t before = 0);
std::uint32_t wide_checksum(const void* data, std::size_t bytes);
}  // namespace software

}  // namespace zero

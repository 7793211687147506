#pragma once
// Checksums of bytes that leave memory. CRC-32C (Castagnoli et al. 1993, doi:10.1109/26.231911)
// finds every single flipped bit, and every burst of up to 32, whatever the length.

#include <cstddef>
#include <cstdint>

namespace zero {

// "123456789" gives 0xe3069283. Eight bytes an instruction where the processor has one for it.
std::uint32_t crc32c(const void* data, std::size_t bytes, std::uint32_t before = 0);

// For much data: eight CRC-32Cs side by side, of the words (of eight bytes) i, i + 8, i + 16, …,
// and the CRC-32C of these eight and of what is left; so the processor need not wait for each
// before the next, and a flipped bit still always shows.
std::uint32_t wide_checksum(const void* data, std::size_t bytes);

namespace software {  // the same by table, on any processor
std::uint32_t crc32c(const void* data, std::size_t bytes, std::uint32_t before = 0);
std::uint32_t wide_checksum(const void* data, std::size_t bytes);
}  // namespace software

}  // namespace zero

#include "machine/base/checksum.h"

#include <array>
#include <cstring>

#include "machine/base/error.h"

#if defined(__SSE4_2__) && defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#endif

namespace zero {
namespace {

constexpr std::array<std::uint32_t, 256> make_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78u : 0u);
    table[byte] = crc;
  }
  return table;
}
constexpr auto table = make_table();

struct Software {
  static std::uint32_t byte(std::uint32_t crc, std::uint8_t value) {
    return (crc >> 8) ^ table[(crc ^ value) & 0xff];
  }
  static std::uint32_t word(std::uint32_t crc, std::uint64_t value) {
    for (int i = 0; i < 8; ++i, value >>= 8) crc = byte(crc, static_cast<std::uint8_t>(value));
    return crc;
  }
};

#if defined(__SSE4_2__) && defined(__x86_64__)
struct Hardware {
  static std::uint32_t byte(std::uint32_t crc, std::uint8_t value) {
    return _mm_crc32_u8(crc, value);
  }
  static std::uint32_t word(std::uint32_t crc, std::uint64_t value) {
    return static_cast<std::uint32_t>(_mm_crc32_u64(crc, value));
  }
};
#elif defined(__ARM_FEATURE_CRC32)
struct Hardware {
  static std::uint32_t byte(std::uint32_t crc, std::uint8_t value) { return __crc32cb(crc, value); }
  static std::uint32_t word(std::uint32_t crc, std::uint64_t value) {
    return __crc32cd(crc, value);
  }
};
#else
using Hardware = Software;
#endif

std::uint64_t load(const std::uint8_t* from) {
  std::uint64_t word = 0;
  std::memcpy(&word, from, sizeof word);
  return word;
}

template <class Processor>
std::uint32_t crc32c_by(const void* data, std::size_t bytes, std::uint32_t before) {
  const auto* at = static_cast<const std::uint8_t*>(data);
  std::uint32_t crc = ~before;
  for (; bytes >= 8; at += 8, bytes -= 8) crc = Processor::word(crc, load(at));
  for (; bytes > 0; ++at, --bytes) crc = Processor::byte(crc, *at);
  return ~crc;
}

constexpr std::size_t lanes = 8, stride = 8 * lanes;

// Adds whole strides to the sums. Returns the bytes that remain.
template <class Processor>
std::size_t add_strides(const std::uint8_t* at, std::size_t bytes, std::uint32_t* sums) {
  for (; bytes >= stride; at += stride, bytes -= stride)
    for (std::size_t lane = 0; lane < lanes; ++lane)
      sums[lane] = Processor::word(sums[lane], load(at + 8 * lane));
  return bytes;
}

template <class Processor>
std::uint32_t join(const std::uint32_t* sums, const std::uint8_t* rest, std::size_t bytes) {
  return crc32c_by<Processor>(rest, bytes, crc32c_by<Processor>(sums, lanes * sizeof *sums, 0));
}

template <class Processor>
std::uint32_t wide_by(const void* data, std::size_t bytes) {
  const auto* at = static_cast<const std::uint8_t*>(data);
  std::uint32_t sums[lanes];
  for (std::uint32_t& sum : sums) sum = ~0u;
  const std::size_t rest = add_strides<Processor>(at, bytes, sums);
  return join<Processor>(sums, at + (bytes - rest), rest);
}

}  // namespace

std::uint32_t crc32c(const void* data, std::size_t bytes, std::uint32_t before) {
  return crc32c_by<Hardware>(data, bytes, before);
}
std::uint32_t wide_checksum(const void* data, std::size_t bytes) {
  return wide_by<Hardware>(data, bytes);
}
void WideChecksum::add(const void* data, std::size_t bytes) {
  SHARDMARK_CHECK(rest_bytes_, ==, std::size_t{0});  // the last part is added once
  const auto* at = static_cast<const std::uint8_t*>(data);
  rest_bytes_ = add_strides<Hardware>(at, bytes, sums_.data());
  if (rest_bytes_ > 0) std::memcpy(rest_.data(), at + (bytes - rest_bytes_), rest_bytes_);
}
std::uint32_t WideChecksum::value() const {
  return join<Hardware>(sums_.data(), rest_.data(), rest_bytes_);
}
std::uint32_t software::crc32c(const void* data, std::size_t bytes, std::uint32_t before) {
  return crc32c_by<Software>(data, bytes, before);
}
std::uint32_t software::wide_checksum(const void* data, std::size_t bytes) {
  return wide_by<Software>(data, bytes);
}

}  // namespace zero

#pragma once
// A code of floats with fewer bytes per value. Its length depends only on the count. Codes:
// int_block.h, one_bit.h, wire_dtype.h.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace collectives {

class Code {
 public:
  virtual ~Code() = default;
  virtual std::int64_t bytes(std::int64_t count) const = 0;
  // Encodes values and replaces each value by value - decoded, or by zero if that is not finite.
  virtual void encode(float* values, std::int64_t count, std::byte* code) const = 0;
  // out[i] = sum over codes, in their order, in float. There is at least one code.
  virtual void decode_sum(std::span<const std::byte* const> codes, std::int64_t count,
                          float* out) const = 0;
};

// Runs the loop of decode_sum block by block, so that the sums stay in the first-level cache.
// values_of(code, begin, size) returns a function from an index in the block to its value.
template <class ValuesOf>
void sum_blocks(std::span<const std::byte* const> codes, std::int64_t count, std::int64_t block,
                float* out, const ValuesOf& values_of) {
  for (std::int64_t begin = 0; begin < count; begin += block) {
    const std::int64_t size = std::min(block, count - begin);
    float* sums = out + begin;
    for (const std::byte* const& code : codes) {
      const auto value = values_of(code, begin, size);
      if (&code == codes.data()) {
#pragma GCC ivdep
        for (std::int64_t i = 0; i < size; ++i) sums[i] = value(i);
      } else {
#pragma GCC ivdep
        for (std::int64_t i = 0; i < size; ++i) sums[i] += value(i);
      }
    }
  }
}

}  // namespace collectives

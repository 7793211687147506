#pragma once
// A code of floats by fewer bytes each, at a length known beforehand. See int_block.h and
// wire_dtype.h for codes; quantized_all_gather.h and quantized_reduce_scatter.h for their use.

#include <cstddef>
#include <cstdint>
#include <span>

namespace collectives {

class Code {
 public:
  virtual ~Code() = default;
  virtual std::int64_t bytes(std::int64_t count) const = 0;
  // Codes values and leaves in them what the code does not carry: value - decoded, zero where it
  // is not finite.
  virtual void encode(float* values, std::int64_t count, std::byte* code) const = 0;
  // out[i] = sum over codes, in their order, in float; at least one code.
  virtual void decode_sum(std::span<const std::byte* const> codes, std::int64_t count,
                          float* out) const = 0;
};

}  // namespace collectives

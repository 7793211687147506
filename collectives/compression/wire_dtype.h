#pragma once
// Half or bfloat16 on the wire: 2 bytes per value, rounded once to nearest, ties to even (as
// fp16_compress_hook and bf16_compress_hook of PyTorch's DistributedDataParallel,
// torch.distributed.algorithms.ddp_comm_hooks.default_hooks; here sums are in float).
//
// |value - decoded| <= u |value|, u = 2^-11 or 2^-8; below the normal numbers, half the smallest
// subnormal number (2^-25 or 2^-134). Half turns 65520 and above into infinity, which is not kept
// in the residual. NaN and infinity arrive at their place.

#include <algorithm>

#include "collectives/compression/code.h"
#include "collectives/compression/magnitude.h"
#include "machine/device/dtype.h"

namespace collectives {

template <class T>
class WireDtype final : public Code {
 public:
  std::int64_t bytes(std::int64_t count) const override {
    return count * static_cast<std::int64_t>(sizeof(T));
  }

  void encode(float* values, std::int64_t count, std::byte* code) const override {
    T* coded = reinterpret_cast<T*>(code);
    for (std::int64_t begin = 0; begin < count; begin += block) {
      const std::int64_t end = std::min(count, begin + block);
#pragma GCC ivdep
      for (std::int64_t i = begin; i < end; ++i) coded[i] = T(values[i]);
#pragma GCC ivdep
      for (std::int64_t i = begin; i < end; ++i) {
        const float carried = static_cast<float>(coded[i]);
        const float rest = values[i] - carried;
        values[i] = magnitude(carried) < infinite_magnitude ? rest : 0.0f;
      }
    }
  }

  void decode_sum(std::span<const std::byte* const> codes, std::int64_t count,
                  float* out) const override {
    sum_blocks(codes, count, block, out,
               [](const std::byte* code, std::int64_t begin, std::int64_t /*size*/) {
                 const T* coded = reinterpret_cast<const T*>(code) + begin;
                 return [coded](std::int64_t i) { return static_cast<float>(coded[i]); };
               });
  }

 private:
  static constexpr std::int64_t block = 1024;  // stays in the first-level cache
};

}  // namespace collectives

#pragma once
// Half or bfloat16 on the wire: each value rounded once, to nearest, ties to even, 2 bytes an
// element (what PyTorch's DistributedDataParallel calls fp16_compress_hook and bf16_compress_hook,
// torch.distributed.algorithms.ddp_comm_hooks.default_hooks; sums are in float here).
//
// |value - decoded| <= u |value|, u = 2^-11 or 2^-8, or below the normal numbers half the smallest
// subnormal one (2^-25 or 2^-134). What half cannot hold, 65520 and above, becomes infinity: so it
// arrives, and is not kept in the residual. NaN and infinity arrive in their place.

#include <algorithm>
#include <string_view>

#include "collectives/compression/code.h"
#include "collectives/compression/magnitude.h"
#include "machine/device/dtype.h"

namespace collectives {

template <class T>
class WireDtype final : public Code {
 public:
  static constexpr std::string_view paper =
      "PyTorch DDP, fp16_compress_hook and bf16_compress_hook";

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
    for (std::int64_t begin = 0; begin < count; begin += block) {
      const std::int64_t size = std::min(block, count - begin);
      float* sums = out + begin;
      bool first = true;
      for (const std::byte* code : codes) {
        const T* coded = reinterpret_cast<const T*>(code) + begin;
        if (first) {
#pragma GCC ivdep
          for (std::int64_t i = 0; i < size; ++i) sums[i] = static_cast<float>(coded[i]);
        } else {
#pragma GCC ivdep
          for (std::int64_t i = 0; i < size; ++i) sums[i] += static_cast<float>(coded[i]);
        }
        first = false;
      }
    }
  }

 private:
  static constexpr std::int64_t block = 1024;  // stays in the first-level cache
};

}  // namespace collectives

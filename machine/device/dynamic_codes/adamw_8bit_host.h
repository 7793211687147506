#pragma once
// The body of adamw_8bit.h on the host: the steps of AdamwOfBlock as loops over a block's moments
// in the L1 cache, which compilers vectorize. A number of the map is a gather, and a code a search.
// The bits are those of AdamwOfBlock.

#include <cstdint>

#include "machine/device/dynamic_codes/adamw_8bit_bodies.h"
#include "machine/device/dynamic_codes/dynamic_tables.h"

namespace machine::kernel {

template <class G, class W>
struct AdamwOfHostBlock : AdamwOfBlock<G, W> {
  template <class Lanes>
  void operator()(std::int64_t block, const Lanes& lanes) const {
    const std::int64_t begin = block * moment_block, left = this->elements - begin,
                       count = left < moment_block ? left : moment_block;
    float g[moment_block], m[moment_block], v[moment_block];
    decode<true>(this->first + begin, this->scales[block], m, count);
    decode<false>(this->second + begin, this->scales[this->blocks + block], v, count);
    const G* const gradients = this->gradients + begin;
    for (std::int64_t i = 0; i < count; ++i) g[i] = widen(gradients[i]);
    float first[moment_block], second[moment_block];  // the new moments
    const AdamwStep<float> step = this->step;
    for (std::int64_t i = 0; i < count; ++i) {
      first[i] = m[i];
      second[i] = v[i];
      step.moments.direction(g[i] * step.gradient_scale, first[i], second[i]);
    }
    const auto largest = [&](const float* moments) {
      return this->scale_of_bits(lanes.template max<std::int32_t>(
          count, [=](std::int64_t i) { return magnitude_bits(moments[i]); }));
    };
    const float new_first = largest(first), new_second = largest(second);
    float* const master = this->master + begin;
    if (this->decays) {
      const std::uint8_t* const decays = this->decays + begin;
#pragma GCC ivdep
      for (std::int64_t i = 0; i < count; ++i) step(g[i], decays[i] != 0, master[i], m[i], v[i]);
    } else {
#pragma GCC ivdep
      for (std::int64_t i = 0; i < count; ++i) step(g[i], true, master[i], m[i], v[i]);
    }
    if (this->weights) {
      W* const weights = this->weights + begin;
      for (std::int64_t i = 0; i < count; ++i) weights[i] = narrow<W>(master[i]);
    }
    encode<true>(m, new_first, this->first + begin, count);
    encode<false>(v, new_second, this->second + begin, count);
    this->scales[block] = new_first;
    this->scales[this->blocks + block] = new_second;
  }

 private:
  template <bool is_signed>
  static void decode(const std::uint8_t* codes, float scale, float* moments, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i)
      moments[i] = DynamicTables<is_signed>::value(codes[i]) * scale;
  }
  template <bool is_signed>
  static void encode(const float* moments, float scale, std::uint8_t* codes, std::int64_t count) {
    float x[moment_block];
    for (std::int64_t i = 0; i < count; ++i) x[i] = scale == 0.0f ? 0.0f : moments[i] / scale;
    DynamicTables<is_signed>::encode(x, count, codes);
  }
};

}  // namespace machine::kernel

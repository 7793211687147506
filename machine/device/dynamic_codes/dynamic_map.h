#pragma once
// The 256 numbers of dynamic tree quantization (Dettmers 2016, arXiv:1511.04561; Dettmers et al.
// 2022, arXiv:2110.02861, section 1.3), in ascending order of their codes. From its first bit after
// the sign a number has z zeros, a one, and a fraction of f bits, and its value is 10^-z times the
// middle of the interval `fraction` of the 2^f equal ones between 0.1 and 1:
//
//   signed    sign, z + f = 6: 127 magnitudes of either sign, 0 and 1     m of Adam
//   unsigned  z + f = 7, z <= 6: 254 numbers, 0 and 1                     v of Adam
//
// So the pattern that would be -0, or 10^-7, is 1 (as in bitsandbytes' create_dynamic_map). With n
// = 2^f and fraction k a magnitude is (2 n + 18 k + 9) / (1280 * 5^z), or / (2560 * 5^z): a
// quotient of two numbers that float has, so one division rounds it correctly. Tables hold them:
// with divisions and loops 8-bit AdamW reached a ninth of the memory's rate on an H200.

#include <cstdint>

#include "machine/device/dtype.h"

namespace machine::kernel {

template <bool is_signed>
struct DynamicMap {
  // Magnitudes are counted from 0. `one` is the number of the magnitude 1.
  static constexpr int zero_code = is_signed ? 127 : 0, one = is_signed ? 128 : 255,
                       least_bits = is_signed ? 0 : 1;  // of a fraction

  SHARDMARK_BOTH static constexpr float magnitude(int number) {
    if (number == 0) return 0.0f;
    if (number == one) return 1.0f;
    const int place = number + least_bits;
    int bits = least_bits;
    while (place >> (bits + 1) != 0) ++bits;
    const int items = 1 << bits, fraction = place - items, zeros = 6 + least_bits - bits;
    const int fives =
        ((zeros & 1) != 0 ? 5 : 1) * ((zeros & 2) != 0 ? 25 : 1) * ((zeros & 4) != 0 ? 625 : 1);
    return static_cast<float>(2 * items + 18 * fraction + 9) /
           static_cast<float>((1280 << least_bits) * fives);
  }

  // Returns the number of the magnitude that is nearest to y, the smaller of two; at most `most`.
  // y: at least 0; of NaN: 0.
  SHARDMARK_BOTH static int nearest(float y, int most) {
    if (!(y > 0.0f)) return 0;
    // No magnitude is larger than 1, and no int holds the guess below for infinity.
    if (y >= 1.0f) return most;
    int bits = least_bits;
    float scaled = y * 1e6f;
    while (scaled >= 1.0f && bits < 6 + least_bits) {
      scaled *= 0.1f;
      ++bits;
    }
    const int items = 1 << bits;
    int fraction = static_cast<int>((scaled - 0.1f) / 0.9f * static_cast<float>(items));
    fraction = fraction < 0 ? 0 : fraction < items ? fraction : items - 1;
    int number = items + fraction - least_bits;
    number = number < most ? number : most;
    // The guess may be a neighbour.
    const Numbers& all = numbers();
    while (number < most && y > all.middles[number]) ++number;
    while (number > 0 && y <= all.middles[number - 1]) --number;
    return number;
  }

  SHARDMARK_BOTH static float value(std::uint8_t code) { return numbers().values[code]; }
  SHARDMARK_BOTH static std::uint8_t code(float x) {
    const bool negative = is_signed && x < 0.0f;
    const int number = nearest(negative ? -x : x, negative ? one - 1 : one);
    return static_cast<std::uint8_t>(negative ? zero_code - number : zero_code + number);
  }

 private:
  struct Numbers {
    float values[256], middles[one];  // of codes; between a magnitude and the next
  };
  SHARDMARK_BOTH static constexpr Numbers computed() {
    Numbers all{};
    for (int code = 0; code < 256; ++code) {
      const int number = code - zero_code;
      all.values[code] = number < 0 ? -magnitude(-number) : magnitude(number);
    }
    for (int number = 0; number < one; ++number)
      all.middles[number] = 0.5f * (magnitude(number) + magnitude(number + 1));
    return all;
  }
  SHARDMARK_BOTH static const Numbers& numbers() {
    static constexpr Numbers all = computed();
    return all;
  }
};

}  // namespace machine::kernel

#pragma once
// The dynamic map (dynamic_map.h) by tables, for the host: the numbers, and the largest x of each
// code but the last. A code is the number of these that are below x, which a search of eight steps
// without branches counts. The codes and values are those of DynamicMap, in bits.

#include <cmath>
#include <cstdint>
#include <limits>

#include "machine/device/dynamic_codes/dynamic_map.h"

namespace machine::kernel {

template <bool is_signed>
class DynamicTables {
 public:
  static float value(std::int32_t code) { return tables.values[code]; }
  // Sets codes[i] to the code of x[i], of `count` elements.
  template <int most>
  static void encode(const float (&x)[most], std::int64_t count, std::uint8_t* codes) {
    std::int32_t below[most] = {};
    for (std::int32_t step = 128; step > 0; step /= 2)
      for (std::int64_t i = 0; i < count; ++i)
        below[i] += static_cast<std::int32_t>(x[i] > tables.largest[below[i] + step - 1]) * step;
    for (std::int64_t i = 0; i < count; ++i)
      codes[i] = static_cast<std::uint8_t>(x[i] == x[i] ? below[i] : Map::zero_code);
  }

 private:
  using Map = DynamicMap<is_signed>;
  struct Tables {
    float values[256], largest[255];
    Tables() {
      for (int code = 0; code < 256; ++code)
        values[code] = Map::value(static_cast<std::uint8_t>(code));
      // A middle has the code of the smaller magnitude.
      for (int code = 0; code < 255; ++code) {
        const float middle = 0.5f * (values[code] + values[code + 1]);
        largest[code] = code < Map::zero_code
                            ? std::nextafter(middle, -std::numeric_limits<float>::infinity())
                            : middle;
      }
    }
  };
  static inline const Tables tables;
};

}  // namespace machine::kernel

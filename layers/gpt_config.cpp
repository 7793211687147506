#include "layers/gpt_config.h"

#include <fmt/format.h>

#include <cstdlib>
#include <numeric>
#include <stdexcept>
#include <string_view>

namespace layers {
namespace {

// The divisor of `number` nearest to `wanted`; the smaller of two as near.
int nearest_divisor(int number, int wanted) {
  int nearest = 1;
  for (int divisor = 1; divisor <= number; ++divisor) {
    if (number % divisor == 0 && std::abs(divisor - wanted) < std::abs(nearest - wanted))
      nearest = divisor;
  }
  return nearest;
}

void check_positive(std::string_view key, double value) {
  if (!(value > 0))
    throw std::invalid_argument(fmt::format("{} is {}: it must be greater than 0", key, value));
}

}  // namespace

void GptConfig::validate(int tp, int pp) const {
  check_positive("layers", layers);
  check_positive("hidden", hidden);
  check_positive("heads", heads);
  check_positive("vocabulary", vocabulary);
  check_positive("sequence", sequence);
  check_positive("layer_norm_epsilon", layer_norm_epsilon);
  check_positive("tp", tp);
  check_positive("pp", pp);
  if (hidden % heads != 0) {
    throw std::invalid_argument(
        fmt::format("heads is {}: it must divide hidden, which is {}; the nearest that does is {}",
                    heads, hidden, nearest_divisor(hidden, heads)));
  }
  const int tp_valid = nearest_divisor(std::gcd(heads, vocabulary), tp);
  if (heads % tp != 0) {
    throw std::invalid_argument(
        fmt::format("tp is {}: it must divide heads, which is {}; the nearest degree that divides "
                    "heads and vocabulary is {}",
                    tp, heads, tp_valid));
  }
  if (vocabulary % tp != 0) {
    throw std::invalid_argument(fmt::format(
        "tp is {}: it must divide vocabulary, which is {}; pad vocabulary to {}, or use "
        "tp {}, the nearest degree that divides heads and vocabulary",
        tp, vocabulary, (vocabulary + tp - 1) / tp * tp, tp_valid));
  }
  if (layers % pp != 0) {
    throw std::invalid_argument(
        fmt::format("pp is {}: it must divide layers, which is {}; the nearest that does is {}", pp,
                    layers, nearest_divisor(layers, pp)));
  }
}

}  // namespace layers

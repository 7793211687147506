#pragma once
// Bodies of the kernels for the numbers with which collectives are checked
// (machine/device/pattern.h).

#include <cstdint>
#include <limits>

#include "machine/device/kernels/element_bodies.h"
#include "machine/device/pattern.h"

namespace machine::kernel {

template <class A>
struct FillPattern {
  Pattern pattern;
  int rank;
  SHARDMARK_BOTH void operator()(std::uint64_t index, A& out) const {
    out = convert<A>(pattern_value(pattern, rank, static_cast<std::int64_t>(index)));
  }
};

// body(i, errors): adds the error of element i of the part. An element is right if it has the bits
// of the right value, or if its error is at most a positive bound.
template <class T>
struct CheckPattern {
  Pattern pattern;
  PatternPart part;
  double bound;
  const T* actual;  // the part's first element
  SHARDMARK_BOTH void operator()(std::int64_t i, PatternErrors& errors) const {
    using Bits = Comparable<T>;
    const double right = right_value<T>(pattern, part, i);
    const T wanted = T(convert<Accumulator<T>>(right)), got = actual[i];
    if (detail::bits_as<Bits>(got) == detail::bits_as<Bits>(wanted)) return;
    const double off = static_cast<double>(static_cast<Accumulator<T>>(got)) - right;
    const double error = off < 0 ? -off : off;
    if (bound > 0 && error <= bound) return;
    const auto index = static_cast<std::uint64_t>(part.begin + i);
    const bool is_number = error <= std::numeric_limits<double>::max();
    errors.add({1, ~index, index, is_number ? error : std::numeric_limits<double>::infinity()});
  }
};

}  // namespace machine::kernel

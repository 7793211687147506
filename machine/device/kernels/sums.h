#pragma once
// The terms that a column-wise body adds to N sums.

namespace machine::kernel {

template <int N, class A>
struct Sums {
  A of[N];
};

}  // namespace machine::kernel

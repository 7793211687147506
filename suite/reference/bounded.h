#pragma once

namespace suite {

// A number in double, and a bound on the error of the judged number.
struct Bounded {
  double value = 0, error = 0;
};

}  // namespace suite

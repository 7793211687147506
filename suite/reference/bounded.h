#pragma once

namespace suite {

// A number in double, and how far what is judged may be from it.
struct Bounded {
  double value = 0, error = 0;
};

}  // namespace suite

#pragma once
// The clock of all measurements: steady, in seconds, with an unspecified origin.

#include <chrono>

namespace machine {

inline double steady_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace machine

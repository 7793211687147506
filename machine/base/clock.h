#pragma once
// The clock that everything here is timed by: seconds, steady, of an unknown origin.

#include <chrono>

namespace machine {

inline double steady_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace machine

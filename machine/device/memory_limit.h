#pragma once
// What each device of this process may hold, to show what becomes of a rank that runs out of
// memory: beyond it allocations fail as if the device had no more.

#include <cstddef>
#include <limits>

namespace machine {

inline std::size_t memory_limit_bytes = std::numeric_limits<std::size_t>::max();

}  // namespace machine

#pragma once
// The operation by which a collective joins the ranks' values, with the names of nccl-tests.

#include <cstddef>
#include <string_view>

namespace machine {

// avg adds, and divides the final sum by the number of ranks.
enum class Reduction : unsigned char { sum, prod, max, min, avg };
inline constexpr Reduction all_reductions[] = {Reduction::sum, Reduction::prod, Reduction::max,
                                               Reduction::min, Reduction::avg};

constexpr std::string_view name(Reduction reduction) {
  constexpr std::string_view names[] = {"sum", "prod", "max", "min", "avg"};
  return names[static_cast<std::size_t>(reduction)];
}

}  // namespace machine

#pragma once
// How a collective joins the values of ranks, by the names nccl-tests gives them.

#include <string_view>

namespace machine {

// avg is a sum on its way; whoever reduces divides the last sum by the number of ranks.
enum class Reduction : unsigned char { sum, prod, max, min, avg };
inline constexpr Reduction all_reductions[] = {Reduction::sum, Reduction::prod, Reduction::max,
                                               Reduction::min, Reduction::avg};

constexpr std::string_view name(Reduction reduction) {
  switch (reduction) {
    case Reduction::sum:
      return "sum";
    case Reduction::prod:
      return "prod";
    case Reduction::max:
      return "max";
    case Reduction::min:
      return "min";
    case Reduction::avg:
      return "avg";
  }
  return "?";
}

}  // namespace machine

#pragma once
// The names of collective operations, under which waits are reported and traffic is counted.

#include <cstddef>
#include <string_view>

namespace machine {

enum class Operation : unsigned char {
  none,
  all_reduce,
  all_gather,
  reduce_scatter,
  broadcast,
  reduce,
  gather,
  scatter,
  all_to_all,
  all_to_all_v,
  send_receive,
  barrier,
};

constexpr std::string_view name(Operation operation) {
  constexpr std::string_view names[] = {
      "none",   "all_reduce", "all_gather", "reduce_scatter", "broadcast",    "reduce",
      "gather", "scatter",    "all_to_all", "all_to_all_v",   "send_receive", "barrier"};
  return names[static_cast<std::size_t>(operation)];
}

}  // namespace machine

#pragma once
// The names of collective operations, under which waits are reported and traffic is counted.

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
std::string_view name(Operation operation);

}  // namespace machine

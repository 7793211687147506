#include "machine/base/operation.h"

namespace machine {

std::string_view name(Operation operation) {
  switch (operation) {
    case Operation::none:
      return "none";
    case Operation::all_reduce:
      return "all_reduce";
    case Operation::all_gather:
      return "all_gather";
    case Operation::reduce_scatter:
      return "reduce_scatter";
    case Operation::broadcast:
      return "broadcast";
    case Operation::reduce:
      return "reduce";
    case Operation::gather:
      return "gather";
    case Operation::scatter:
      return "scatter";
    case Operation::all_to_all:
      return "all_to_all";
    case Operation::all_to_all_v:
      return "all_to_all_v";
    case Operation::send_receive:
      return "send_receive";
    case Operation::barrier:
      return "barrier";
  }
  return "?";
}

}  // namespace machine

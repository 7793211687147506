#pragma once
// The failures of a machine, and the checks on ourselves.
//
// MachineError: something outside the program failed (a device, a library, a peer). It carries
// what, where (rank, host, unit are added as it travels up) and what to do. SHARDMARK_CHECK: a
// programmer's error; prints the condition and both values.

#include <fmt/format.h>

#include <stdexcept>
#include <string>

namespace machine {

class MachineError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A wait that did not end: names who waited for whom.
class Timeout : public MachineError {
 public:
  using MachineError::MachineError;
};

// Another rank has failed or died; whoever catches this is not the cause.
class PeerFailure : public MachineError {
 public:
  using MachineError::MachineError;
};

namespace detail {
template <class Left, class Right>
[[noreturn]] void check_failed(const char* file, int line, const char* condition, const Left& left,
                               const Right& right) {
  throw std::logic_error(
      fmt::format("{}:{}: {} does not hold: {} against {}", file, line, condition, left, right));
}
}  // namespace detail

}  // namespace machine

#define SHARDMARK_CHECK(left, comparison, right)                                            \
  do {                                                                                      \
    const auto& shardmark_left = (left);                                                    \
    const auto& shardmark_right = (right);                                                  \
    if (!(shardmark_left comparison shardmark_right))                                       \
      ::machine::detail::check_failed(__FILE__, __LINE__, #left " " #comparison " " #right, \
                                      shardmark_left, shardmark_right);                     \
  } while (false)

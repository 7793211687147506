#pragma once
// The failures of a machine, and the checks on ourselves.
//
// MachineError: something outside the program failed (a device, a library, a peer). It carries
// what, where (rank, host, unit are added as it travels up) and what to do. SHARDMARK_CHECK: a
// programmer's error; prints the condition and both values.

#include <concepts>
#include <stdexcept>
#include <string>
#include <string_view>

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
std::string text_of(std::string_view value);
std::string text_of(long long value);
std::string text_of(unsigned long long value);
template <std::convertible_to<std::string_view> T>
std::string text_of(const T& value) {
  return text_of(std::string_view(value));
}
template <std::signed_integral T>
std::string text_of(T value) {
  return text_of(static_cast<long long>(value));
}
template <std::unsigned_integral T>
std::string text_of(T value) {
  return text_of(static_cast<unsigned long long>(value));
}
inline std::string text_of(bool value) { return value ? "true" : "false"; }

[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               const std::string& left, const std::string& right);
}  // namespace detail

}  // namespace machine

#define SHARDMARK_CHECK(left, comparison, right)                                            \
  do {                                                                                      \
    const auto& shardmark_left = (left);                                                    \
    const auto& shardmark_right = (right);                                                  \
    if (!(shardmark_left comparison shardmark_right))                                       \
      ::machine::detail::check_failed(__FILE__, __LINE__, #left " " #comparison " " #right, \
                                      ::machine::detail::text_of(shardmark_left),           \
                                      ::machine::detail::text_of(shardmark_right));         \
  } while (false)

#pragma once
// The failures of a machine, and the checks on ourselves.
//
// MachineError: something outside the program failed (a device, a library, a peer). It carries a
// Failure, whose text says what to do. SHARDMARK_CHECK: a programmer's error; prints the condition
// and both values.

#include <concepts>
#include <stdexcept>
#include <string>
#include <string_view>

#include "machine/base/failure.h"

namespace machine {

class MachineError : public std::runtime_error {
 public:
  explicit MachineError(const std::string& text, Failure::Kind kind = Failure::Kind::exception,
                        int rank = -1, int peer = -1)
      : std::runtime_error(text), kind_(kind), rank_(rank), peer_(peer) {}
  Failure failure() const { return {.kind = kind_, .rank = rank_, .peer = peer_, .text = what()}; }

 private:
  Failure::Kind kind_;
  int rank_, peer_;
};

// A wait that exceeded its timeout: `rank` waited for `peer`.
class Timeout : public MachineError {
 public:
  explicit Timeout(const std::string& text, int rank = -1, int peer = -1)
      : MachineError(text, Failure::Kind::timeout, rank, peer) {}
};

// `peer` has failed or died, and `rank` stopped because of that.
class PeerFailure : public MachineError {
 public:
  explicit PeerFailure(const std::string& text, int rank = -1, int peer = -1)
      : MachineError(text, Failure::Kind::peer_failed, rank, peer) {}
};

// A mistake on the command line or in a file of the user: one line, exit code 2.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Returns a MachineError's own failure. Derives the kind of other exceptions from their type.
Failure failure_of(const std::exception& error);

namespace detail {
std::string text_of(double value);
template <class T>
std::string text_of(const T& value) {
  if constexpr (std::convertible_to<T, std::string_view>) {
    return std::string(std::string_view(value));
  } else {
    static_assert(std::integral<T>);
    if constexpr (std::same_as<T, bool>) return value ? "true" : "false";
    return std::to_string(value);
  }
}

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

#include "machine/base/failure.h"

#include <array>
#include <cerrno>
#include <new>

#include "machine/base/error.h"

namespace machine {
namespace {

using Kind = Failure::Kind;

// Indexed by Kind.
constexpr std::array<std::string_view, 10> names{
    "exception", "wrong_result", "wrong_input", "out_of_memory", "disk_full",
    "timeout",   "peer_failed",  "lost_rank",   "deadlock",      "unsupported"};

// A rank that threw leaves wrong data on its peers, and a rank that waits fails because of another.
int steps_from_cause(Kind kind) {
  switch (kind) {
    case Kind::wrong_result:
      return 1;
    case Kind::timeout:
    case Kind::deadlock:
      return 2;
    case Kind::peer_failed:
      return 3;
    default:
      return 0;
  }
}

}  // namespace

std::string_view name(Kind kind) { return names[static_cast<std::size_t>(kind)]; }

Kind parse_failure_kind(std::string_view text) {
  for (std::size_t i = 0; i < names.size(); ++i)
    if (names[i] == text) return static_cast<Kind>(i);
  throw std::runtime_error("unknown kind of failure '" + std::string(text) + "'");
}

Kind kind_of_errno(int error) {
  if (error == ENOSPC || error == EDQUOT) return Kind::disk_full;
  return error == ENOMEM ? Kind::out_of_memory : Kind::exception;
}

std::string line(const Failure& failure) {
  return failure.rank < 0 ? failure.text
                          : "rank " + std::to_string(failure.rank) + ": " + failure.text;
}

int lost_rank(const Failure& failure) {
  return steps_from_cause(failure.kind) > 1 ? -1 : failure.rank;
}

std::optional<Failure> first_cause(std::span<const std::optional<Failure>> of_ranks) {
  const std::optional<Failure>* found = nullptr;
  for (const std::optional<Failure>& failure : of_ranks)
    if (failure && (!found || steps_from_cause(failure->kind) < steps_from_cause((*found)->kind)))
      found = &failure;
  if (!found) return std::nullopt;
  const auto is_wrong = [&](int rank) {
    if (rank < 0 || rank >= static_cast<int>(of_ranks.size())) return false;
    const std::optional<Failure>& failure = of_ranks[rank];
    return failure && failure->kind == Kind::wrong_result;
  };
  // The senders can form a ring, so the search is limited to one round.
  for (std::size_t i = 0; i < of_ranks.size() && (*found)->kind == Kind::wrong_result; ++i) {
    if ((*found)->summed_ranks > 0 || !is_wrong((*found)->peer)) break;
    found = &of_ranks[(*found)->peer];
  }
  return *found;
}

Failure failure_of(const std::exception& error) {
  if (const auto* of_machine = dynamic_cast<const MachineError*>(&error))
    return of_machine->failure();
  Failure failure{.text = *error.what() ? error.what() : "exception without a message"};
  if (dynamic_cast<const std::bad_alloc*>(&error)) failure.kind = Kind::out_of_memory;
  if (dynamic_cast<const UsageError*>(&error)) failure.kind = Kind::wrong_input;
  return failure;
}

}  // namespace machine

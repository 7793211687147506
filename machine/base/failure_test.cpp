#include "machine/base/failure.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <new>

#include "machine/base/bytes.h"
#include "machine/base/error.h"

namespace machine {
namespace {

using Kind = Failure::Kind;
using Failures = std::vector<std::optional<Failure>>;

Failure wrong(int rank, int peer, int summed_ranks = 0) {
  return {.kind = Kind::wrong_result, .rank = rank, .peer = peer, .summed_ranks = summed_ranks};
}

TEST(Failure, SurvivesEncoding) {
  const Failure all{Kind::disk_full, 3, 1, 17, 2, "no room\n\"for\" \xc3\xa9"};
  EXPECT_EQ(decode<Failure>(encode(all)), all);
  EXPECT_EQ(decode<Failure>(encode(Failure{})), Failure{});
}

TEST(Failure, EveryKindHasAName) {
  for (int i = 0; i <= static_cast<int>(Kind::unsupported); ++i)
    EXPECT_EQ(parse_failure_kind(name(static_cast<Kind>(i))), static_cast<Kind>(i));
  EXPECT_EQ(name(Kind::lost_rank), "lost_rank");
  EXPECT_EQ(name(Kind::unsupported), "unsupported");
  EXPECT_THROW(parse_failure_kind("bad luck"), std::runtime_error);
}

TEST(Failure, KindsOfExceptionsAndErrors) {
  const Timeout timeout("it waited", 2, 1);
  EXPECT_EQ(failure_of(timeout),
            (Failure{.kind = Kind::timeout, .rank = 2, .peer = 1, .text = "it waited"}));
  EXPECT_EQ(failure_of(PeerFailure("it stopped", 0, 3)).kind, Kind::peer_failed);
  EXPECT_EQ(failure_of(MachineError("full", Kind::disk_full)).kind, Kind::disk_full);
  EXPECT_EQ(failure_of(UsageError("no such file")).kind, Kind::wrong_input);
  EXPECT_EQ(failure_of(std::bad_alloc()).kind, Kind::out_of_memory);
  EXPECT_EQ(failure_of(std::logic_error("out of memory on host")).kind, Kind::exception);
  EXPECT_EQ(failure_of(std::runtime_error("")).text, "exception without a message");
  EXPECT_EQ(kind_of_errno(ENOSPC), Kind::disk_full);
  EXPECT_EQ(kind_of_errno(EACCES), Kind::exception);
}

TEST(Failure, AWaitingRankIsNotLost) {
  for (const Kind kind : {Kind::lost_rank, Kind::exception, Kind::out_of_memory, Kind::disk_full})
    EXPECT_EQ(lost_rank({.kind = kind, .rank = 2}), 2) << name(kind);
  for (const Kind kind : {Kind::timeout, Kind::peer_failed, Kind::deadlock})
    EXPECT_EQ(lost_rank({.kind = kind, .rank = 2, .peer = 1}), -1) << name(kind);
}

TEST(Failure, WrongDataIsTracedToTheFirstSender) {
  EXPECT_EQ(first_cause(Failures{}), std::nullopt);
  EXPECT_EQ(first_cause(Failures{std::nullopt, std::nullopt}), std::nullopt);
  // A ring of four: rank 2 received wrong data from rank 1, whose own data are right.
  const Failures ring{wrong(0, 3), std::nullopt, wrong(2, 1), wrong(3, 2)};
  EXPECT_EQ(first_cause(ring)->rank, 2);
  // A sum of two ranks: rank 0 has the result that rank 1 computed from the wrong message.
  EXPECT_EQ(first_cause(Failures{wrong(0, 1), wrong(1, 0, 2)})->rank, 1);
  const Failures circle{wrong(0, 1), wrong(1, 0)};
  EXPECT_TRUE(first_cause(circle)) << "it ends";
}

TEST(Failure, AnExceptionComesBeforeItsConsequences) {
  const Failure thrown{.kind = Kind::disk_full, .rank = 2};
  EXPECT_EQ(first_cause(Failures{wrong(0, 1), Failure{.kind = Kind::timeout, .rank = 1}, thrown}),
            thrown);
  EXPECT_EQ(first_cause(Failures{Failure{.kind = Kind::peer_failed, .rank = 0, .peer = 1},
                                 Failure{.kind = Kind::timeout, .rank = 1, .peer = 0}})
                ->rank,
            1);
}

}  // namespace
}  // namespace machine

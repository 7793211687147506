#include "harness/diagnose/diagnosis.h"

#include <gtest/gtest.h>

namespace harness {
namespace {

using machine::RankState;
using Kind = LossReport::Kind;
using FailureKind = machine::Failure::Kind;
constexpr double now = 1000, timeout = 60;
constexpr auto activity = "all_reduce/ranks:4/bytes:8";

// Returns a snapshot by rank 1 in which all ranks work and send heartbeats.
Snapshot healthy(int ranks = 4) {
  Snapshot snapshot;
  snapshot.self = 1;
  for (int rank = 0; rank < ranks; ++rank) {
    RankView view;
    view.rank = rank;
    view.pid = 100 + rank;
    view.heartbeat_s = now - 0.1;
    view.progress_s = now - 1;
    view.host = "node1";
    view.activity = view.running_case = activity;
    view.waiting = "not waiting";
    snapshot.ranks.push_back(view);
  }
  return snapshot;
}

void wait(RankView& rank, int peer, double since_s) {
  rank.waiting_for = peer;
  rank.waiting =
      "in all_reduce, waiting for rank " + std::to_string(peer) + " at message 17 (4096 bytes)";
  rank.progress_s = since_s;
}

void fail(RankView& rank, const machine::Failure& failure, double at_s) {
  rank.state = RankState::failed;
  rank.noted = failure;
  rank.failed_s = at_s;
}

LossReport found(const Snapshot& snapshot) {
  const auto finding = diagnose(snapshot, now, timeout);
  EXPECT_TRUE(finding.has_value());
  return finding.value_or(LossReport{Kind::failed, -1, -1, {}, ""});
}

TEST(Diagnose, HealthyRanksAreNotReported) { EXPECT_FALSE(diagnose(healthy(), now, timeout)); }

TEST(Diagnose, IdleRanksMayWaitWhileARankWorks) {
  Snapshot snapshot = healthy();
  for (const int rank : {0, 1, 2})
    wait(snapshot.ranks[static_cast<std::size_t>(rank)], 3, now - 100 * timeout);
  snapshot.ranks[3].progress_s = now - 0.9 * timeout;
  EXPECT_FALSE(diagnose(snapshot, now, timeout));
}

TEST(Diagnose, ASlowStartIsNotAFault) {
  Snapshot snapshot = healthy();
  snapshot.ranks[2].state = RankState::absent;
  snapshot.ranks[2].pid = 0;
  snapshot.ranks[2].process = ProcessState::unknown;
  snapshot.ranks[3].watched = false;  // it runs, but its watchdog does not yet
  snapshot.ranks[3].heartbeat_s = snapshot.ranks[3].progress_s = now - 10 * timeout;
  for (const int rank : {0, 1})
    wait(snapshot.ranks[static_cast<std::size_t>(rank)], 3, now - 2 * timeout);
  EXPECT_FALSE(diagnose(snapshot, now, timeout));
}

TEST(Diagnose, RanksThatFinishedMayBeGone) {
  Snapshot snapshot = healthy();
  snapshot.ranks[2].state = RankState::finished;
  snapshot.ranks[2].process = ProcessState::gone;
  snapshot.ranks[2].heartbeat_s = snapshot.ranks[2].progress_s = 0;
  EXPECT_FALSE(diagnose(snapshot, now, timeout));
}

TEST(Diagnose, ADeadRankIsNamedAtOnceWithTheStatesOfOtherRanks) {
  for (const ProcessState process : {ProcessState::gone, ProcessState::zombie}) {
    Snapshot snapshot = healthy();
    snapshot.ranks[2].process = process;
    wait(snapshot.ranks[0], 2, now - 1);
    fail(snapshot.ranks[1], {.text = "MPI gave up"}, now - 0.5);
    const LossReport finding = found(snapshot);
    EXPECT_EQ(finding.kind, Kind::died);
    EXPECT_EQ(finding.culprit, 2);
    EXPECT_EQ(finding.reporter, 0);
    EXPECT_EQ(finding.running_case, activity);
    EXPECT_EQ(finding.failure.kind, FailureKind::lost_rank);
    EXPECT_EQ(finding.failure.rank, 2);
    EXPECT_EQ(finding.failure.text,
              "rank 2 (pid 102 on node1) died during all_reduce/ranks:4/bytes:8. The "
              "others: rank 0 in "
              "all_reduce, waiting for rank 2 at message 17 (4096 bytes); rank 1 failed: MPI gave "
              "up; rank 3 was "
              "working");
  }
}

TEST(Diagnose, ReportsTheStateOfEveryRank) {
  Snapshot snapshot = healthy(64);
  snapshot.ranks[2].process = ProcessState::gone;
  for (RankView& rank : snapshot.ranks)
    if (rank.rank != 2) wait(rank, 2, now - 1);
  const LossReport finding = found(snapshot);
  for (const RankView& rank : snapshot.ranks) {
    if (rank.rank == 2) continue;
    EXPECT_NE(finding.failure.text.find("rank " + std::to_string(rank.rank) + " " + rank.waiting),
              std::string::npos)
        << rank.rank;
  }
}

TEST(Diagnose, AStoppedRankIsNamedAfterTheTimeout) {
  Snapshot snapshot = healthy();
  snapshot.ranks[0].process = ProcessState::stopped;
  snapshot.ranks[0].heartbeat_s = snapshot.ranks[0].progress_s = now - timeout + 1;
  EXPECT_FALSE(diagnose(snapshot, now, timeout));
  snapshot.ranks[0].heartbeat_s = now - timeout - 1;
  fail(snapshot.ranks[3], {.kind = FailureKind::timeout, .text = "waited too long"}, now);
  const LossReport finding = found(snapshot);
  EXPECT_EQ(finding.kind, Kind::stopped);
  EXPECT_EQ(finding.culprit, 0);
  EXPECT_EQ(finding.reporter, 1) << "the stopped rank cannot report";
  EXPECT_NE(
      finding.failure.text.find("rank 0 (pid 100 on node1) was stopped (SIGSTOP) for 61 s during"),
      std::string::npos)
      << finding.failure.text;
  snapshot.ranks[0].process = ProcessState::alive;  // it is in the kernel, or its machine swaps
  EXPECT_EQ(found(snapshot).kind, Kind::unresponsive);
}

TEST(Diagnose, AHungRankIsNamedWhenNoRankProgresses) {
  Snapshot snapshot = healthy();
  snapshot.ranks[2].progress_s = now - timeout - 5;
  for (const int rank : {0, 1, 3})
    wait(snapshot.ranks[static_cast<std::size_t>(rank)], 2, now - timeout - 3);
  LossReport finding = found(snapshot);
  EXPECT_EQ(finding.kind, Kind::hung);
  EXPECT_EQ(finding.culprit, 2);
  EXPECT_NE(finding.failure.text.find(
                "rank 2 (pid 102 on node1) made no progress for 65 s and waited for no rank"),
            std::string::npos);
  // A waiting rank gave up. The cause is still the rank that it waited for.
  fail(snapshot.ranks[1], {.kind = FailureKind::timeout, .rank = 1, .peer = 2, .text = "gave up"},
       now - 1);
  finding = found(snapshot);
  EXPECT_EQ(finding.kind, Kind::hung);
  EXPECT_EQ(finding.culprit, 2);
  // A rank that failed before the others timed out is the cause.
  snapshot.ranks[1].failed_s = now - 10;
  finding = found(snapshot);
  EXPECT_EQ(finding.kind, Kind::failed);
  EXPECT_EQ(finding.culprit, 1);
  EXPECT_EQ(finding.failure.kind, FailureKind::timeout);
  EXPECT_EQ(machine::lost_rank(finding.failure), -1) << "it only waited";
}

// A rank that waits for a device or in a library also waits for another rank, which is unknown.
TEST(Diagnose, AHungRankIsNamedWhileOthersWaitForDevicesOrLibraries) {
  for (const bool device : {true, false}) {
    Snapshot snapshot = healthy();
    for (const int rank : {0, 1, 3}) {
      RankView& view = snapshot.ranks[static_cast<std::size_t>(rank)];
      view.progress_s = now - timeout - 3;
      view.on_device = device;
      if (!device) view.waiting_for = machine::any_of_group;
      view.waiting = device ? "waiting for its device; it was last in all_reduce, with rank 2"
                            : "in all_reduce, waiting for its group at message 9 (8 bytes)";
    }
    snapshot.ranks[2].progress_s = now - timeout - 5;
    LossReport finding = found(snapshot);
    EXPECT_EQ(finding.kind, Kind::hung);
    EXPECT_EQ(finding.culprit, 2);
    for (const int rank : {0, 1, 3})
      EXPECT_NE(finding.failure.text.find("rank " + std::to_string(rank) + " " +
                                          snapshot.ranks[static_cast<std::size_t>(rank)].waiting),
                std::string::npos)
          << finding.failure.text;
    // If all ranks wait, no rank is blamed. The report lists each rank.
    snapshot.ranks[2] = snapshot.ranks[1];
    snapshot.ranks[2].rank = 2;
    finding = found(snapshot);
    EXPECT_EQ(finding.kind, Kind::deadlock);
    EXPECT_EQ(
        finding.failure.text.find("no progress for 63 s during all_reduce/ranks:4/bytes:8, and "
                                  "no single rank blocks the others. Each rank: rank 0 " +
                                  snapshot.ranks[0].waiting + "; rank 1 "),
        0U)
        << finding.failure.text;
  }
}

TEST(Diagnose, ARankBlockedByItsDeviceIsNamed) {
  Snapshot snapshot = healthy();
  for (const int rank : {0, 1, 3})
    wait(snapshot.ranks[static_cast<std::size_t>(rank)], 2, now - timeout - 3);
  snapshot.ranks[2].on_device = true;
  snapshot.ranks[2].progress_s = now - timeout - 5;
  const LossReport finding = found(snapshot);
  EXPECT_EQ(finding.kind, Kind::hung);
  EXPECT_EQ(finding.culprit, 2);
  EXPECT_NE(finding.failure.text.find(
                "rank 2 (pid 102 on node1) made no progress for 65 s and waited for "
                "its device during"),
            std::string::npos)
      << finding.failure.text;
  snapshot.ranks[3].here = false;  // the device may wait for an invisible rank
  EXPECT_EQ(found(snapshot).kind, Kind::deadlock);
}

TEST(Diagnose, TheHungRankMayReportItself) {
  Snapshot snapshot = healthy();
  for (RankView& rank : snapshot.ranks) wait(rank, 0, now - timeout - 1);
  snapshot.ranks[0].waiting_for = -1;
  for (const int self : {0, 3}) {
    snapshot.self = self;
    const LossReport finding = found(snapshot);
    EXPECT_EQ(finding.culprit, 0);
    EXPECT_EQ(finding.reporter, 0) << "its watchdog beats, so it can speak for itself";
  }
  snapshot.self = 3;
  snapshot.ranks[0].heartbeat_s = now - 2 * responsive_s;
  EXPECT_EQ(found(snapshot).reporter, 1);
}

TEST(Diagnose, DeadlockReportsOnlyTheCycle) {
  Snapshot snapshot = healthy();
  wait(snapshot.ranks[0], 2, now - timeout - 1);
  wait(snapshot.ranks[1], 3, now - timeout - 1);
  wait(snapshot.ranks[2], 1, now - timeout - 1);
  wait(snapshot.ranks[3], 2, now - timeout + 1);
  EXPECT_FALSE(diagnose(snapshot, now, timeout)) << "rank 3 has only begun to wait";
  wait(snapshot.ranks[3], 2, now - timeout - 1);
  const LossReport finding = found(snapshot);
  EXPECT_EQ(finding.kind, Kind::deadlock);
  EXPECT_EQ(finding.failure.text.substr(0, finding.failure.text.find(". The")),
            "deadlock during all_reduce/ranks:4/bytes:8: rank 2 waits for rank 1, rank 1 "
            "waits for rank 3, "
            "rank 3 waits for rank 2");
  EXPECT_NE(finding.failure.text.find("rank 0 in all_reduce, waiting for rank 2"),
            std::string::npos);
  EXPECT_EQ(finding.failure.kind, FailureKind::deadlock);
  EXPECT_EQ(finding.failure.rank, -1) << "no rank is blamed";
}

// The rank waits with the others, but its exception is the cause.
TEST(Diagnose, ADeadlockShowsTheExceptionOfARank) {
  Snapshot snapshot = healthy();
  for (RankView& rank : snapshot.ranks) wait(rank, (rank.rank + 1) % 4, now - timeout - 1);
  snapshot.ranks[2].noted = machine::Failure{.rank = 2, .text = "out of luck"};
  const LossReport finding = found(snapshot);
  EXPECT_EQ(finding.kind, Kind::deadlock);
  EXPECT_NE(finding.failure.text.find("at message 17 (4096 bytes), after it threw: out of luck; "
                                      "rank 3"),
            std::string::npos)
      << finding.failure.text;
}

TEST(Diagnose, ShowsTheLastWaitOfTheHungRank) {
  Snapshot snapshot = healthy(2);
  for (RankView& rank : snapshot.ranks) rank.progress_s = now - timeout - 1;
  wait(snapshot.ranks[1], 0, now - timeout - 1);
  snapshot.ranks[0].waiting = "not waiting; it was somewhere";
  snapshot.ranks[0].last_wait = "last in all_gather, with rank 1";
  EXPECT_NE(found(snapshot).failure.text.find("waited for no rank during "
                                              "all_reduce/ranks:4/bytes:8; it was last in "
                                              "all_gather, with rank 1. The others"),
            std::string::npos)
      << found(snapshot).failure.text;
}

TEST(Diagnose, ReportsAWaitForARankOutOfSight) {
  Snapshot snapshot = healthy();
  snapshot.ranks[3].here = false;
  snapshot.ranks[3].host = "node2";
  wait(snapshot.ranks[0], 1, now - timeout - 1);
  wait(snapshot.ranks[1], 3, now - timeout - 1);
  wait(snapshot.ranks[2], 3, now - timeout - 1);
  EXPECT_NE(found(snapshot).failure.text.find(
                "rank 0 waits for rank 1, rank 1 waits for rank 3, which is on node2 and not "
                "visible from here"),
            std::string::npos)
      << found(snapshot).failure.text;
  wait(snapshot.ranks[2], 0, now);
  EXPECT_FALSE(diagnose(snapshot, now, timeout));
}

TEST(Diagnose, NamesTheFirstFailureNotItsConsequences) {
  Snapshot snapshot = healthy();
  fail(snapshot.ranks[0],
       {.kind = FailureKind::peer_failed, .rank = 0, .peer = 3, .text = "stopped"}, now - 2);
  fail(snapshot.ranks[3],
       {.kind = FailureKind::out_of_memory, .rank = 3, .text = "asked for 8 GiB"}, now - 2);
  fail(snapshot.ranks[2], {.text = "another thing"}, now - 1);
  LossReport finding = found(snapshot);
  EXPECT_EQ(finding.kind, Kind::failed);
  EXPECT_EQ(finding.culprit, 3);
  EXPECT_NE(finding.failure.text.find(
                "rank 3 (pid 103 on node1) failed during all_reduce/ranks:4/bytes:8: asked "
                "for 8 GiB"),
            std::string::npos);
  EXPECT_EQ(finding.failure.kind, FailureKind::out_of_memory);
  EXPECT_EQ(finding.failure.rank, 3);
  // The process may have ended by then. The failure has priority over the end of the process.
  snapshot.ranks[3].process = ProcessState::gone;
  finding = found(snapshot);
  EXPECT_EQ(finding.kind, Kind::failed);
  EXPECT_EQ(finding.culprit, 3);
}

}  // namespace
}  // namespace harness

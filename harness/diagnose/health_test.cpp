// The ranks that health names, and those that it must not name, in artificial runs.

#include "harness/diagnose/health.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>

namespace harness {
namespace {

// A run with artificial cases. Busy times vary at random.
class MadeUp {
 public:
  explicit MadeUp(unsigned seed = 1) : random_(seed) {}

  // The busy time of a rank, the time of other work on its core, and spikes among 100 samples.
  struct Rank {
    double busy_s = 0.01, delayed_s = 0, delayed_fraction = 0, spikes = 0;
  };
  Record& add(const std::vector<Rank>& ranks, const std::string& unit = "all_reduce") {
    Record& record = run.records.emplace_back();
    record.unit = unit;
    record.traits = Traits{.equal_work = true, .limit_applies = true};
    record.axes = {{"algorithm", "ring"}, {"ranks", std::to_string(ranks.size())}};
    record.name = fmt::format("{}/algorithm:ring/number:{}", unit, run.records.size());
    record.verdict = Ruling::pass;
    record.counters["samples"] = 100;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      const auto put = [&](std::string_view name, double value) {
        record.counters[fmt::format("{}/rank:{}", name, rank)] = value;
      };
      put("busy_s", ranks[rank].busy_s * around());
      put("delayed_s", ranks[rank].delayed_s);
      put("delayed_fraction", ranks[rank].delayed_fraction);
      put("spikes", ranks[rank].spikes);
    }
    return record;
  }
  double around() { return std::lognormal_distribution<double>(0, 0.1)(random_); }

  // Returns the findings except OK in order, for example "slow rank 2; jitter 1".
  std::string drained(const std::string& environment = "") const {
    std::string text;
    for (const Finding& finding : health_of(run, environment).findings) {
      if (finding.level == Level::ok) continue;
      text += fmt::format("{}{}", text.empty() ? "" : "; ", finding.kind);
      for (const int rank : finding.ranks) text += fmt::format(" {}", rank);
    }
    return text;
  }
  bool inconclusive() const {
    return health_text(health_of(run, "")).find("inconclusive") != std::string::npos;
  }

  RunFile run;

 private:
  std::mt19937_64 random_;
};

// 200 runs of 40 cases on a machine with other work. Random ranks are delayed, by up to all their
// time.
TEST(Health, ABusyMachineBlamesNoRank) {
  std::mt19937_64 random(5);
  std::uniform_real_distribution<double> some(0, 1);
  for (unsigned seed = 0; seed < 200; ++seed) {
    MadeUp made(seed);
    for (int i = 0; i < 40; ++i) {
      std::vector<MadeUp::Rank> ranks(2 + seed % 3);
      for (MadeUp::Rank& rank : ranks)
        if (some(random) < 0.4) {
          rank.delayed_fraction = some(random);
          rank.delayed_s = 0.02 * rank.delayed_fraction;
          rank.busy_s += rank.delayed_s;
          rank.spikes = std::floor(4 * some(random));
        }
      made.add(ranks);
    }
    ASSERT_EQ(made.drained(), "") << seed;
  }
}

TEST(Health, ALateRankIsNamedUnlessItsCoreExplainsIt) {
  MadeUp late, explained, once;
  for (int i = 0; i < 10; ++i) {
    late.add({{}, {}, {.busy_s = 0.016}});
    explained.add({{}, {}, {.busy_s = 0.016, .delayed_s = 0.006}});
    once.add({{}, {}, {.busy_s = i < 7 ? 0.016 : 0.01}});
  }
  EXPECT_EQ(late.drained(), "slow rank 2");
  EXPECT_EQ(explained.drained(), "");
  EXPECT_EQ(once.drained(), "") << "in 7 of 10 cases";
}

// A root has more work, and short cases show nothing.
TEST(Health, OnlyRanksWithEqualWorkAreCompared) {
  MadeUp roots, tiny;
  for (int i = 0; i < 10; ++i) {
    roots.add({{.busy_s = 0.03}, {}, {}}, "gather").traits = Traits{.limit_applies = true};
    tiny.add({{.busy_s = 3e-5}, {.busy_s = 1e-5}});
  }
  EXPECT_EQ(roots.drained(), "");
  EXPECT_EQ(tiny.drained(), "");
}

// Runs of 10 us on GPUs, by their own clocks. The host's delays do not explain them.
TEST(Health, ASlowGpuIsNamedByShortRuns) {
  const auto gpus = [](int samples) {
    MadeUp made;
    for (int i = 0; i < 10; ++i) {
      Record& record =
          made.add({{.busy_s = 1e-5}, {.busy_s = 1e-5}, {.busy_s = 1.6e-5, .delayed_s = 1e-5}});
      record.seconds = record.counters["device_s"] = 1.6e-5;
      record.counters["batch"] = 20;
      record.counters["samples"] = samples;
    }
    return made.drained();
  };
  EXPECT_EQ(gpus(100), "slow rank 2");
  EXPECT_EQ(gpus(3), "") << "1 ms in all";
}

TEST(Health, TraitsDecideTheKindOfAFinding) {
  MadeUp disk, unlimited;
  for (int i = 0; i < 10; ++i) {
    disk.add({{}, {}, {.busy_s = 0.016}}).traits = Traits{.equal_work = true, .uses_disk = true};
    Record& record = unlimited.add({{}});
    record.traits = Traits{.equal_work = true};
    record.counters["flops"] = 1e9;
    record.counters["limit_s"] = 1e-3;
    record.counters["limit_fraction"] = 0.01;
  }
  EXPECT_EQ(disk.drained(), "slow disk 2");
  EXPECT_EQ(unlimited.drained(), "");
}

// The records were written before records had traits.
TEST(Health, RecordsWithoutTraitsAreReportedAndNotSearched) {
  MadeUp old;
  for (int i = 0; i < 10; ++i) old.add({{}, {}, {.busy_s = 0.016}}).traits.reset();
  EXPECT_EQ(old.drained(), "");
  EXPECT_NE(health_text(health_of(old.run, "")).find("10 of 10 records do not state the traits"),
            std::string::npos);
}

// 9 ranks on 3 hosts: one rank that is slow beyond the spread of the others, and a host with only
// slow ranks.
TEST(Health, TheSpreadOfRanksBlamesNoneAndASlowHostIsOneFinding) {
  std::string hosts;
  for (int rank = 0; rank < 9; ++rank)
    hosts += fmt::format(R"({}{{"host": "node{}"}})", rank ? "," : "", rank / 3);
  hosts = fmt::format(R"({{"ranks": [{}]}})", hosts);
  const auto drained = [&](const std::vector<double>& busy_ms) {
    MadeUp made;
    for (int i = 0; i < 10; ++i) {
      std::vector<MadeUp::Rank> ranks;
      for (const double ms : busy_ms) ranks.push_back({.busy_s = 1e-3 * ms});
      made.add(ranks);
    }
    return made.drained(hosts);
  };
  EXPECT_EQ(drained({10, 10, 10, 10, 10, 10, 10, 10, 16}), "slow rank 8");
  EXPECT_EQ(drained({8, 12, 9, 13, 10, 14, 8, 12, 16}), "") << "two kinds of machine";
  EXPECT_EQ(drained({8, 12, 9, 13, 10, 14, 8, 12, 30}), "slow rank 8");
  EXPECT_EQ(drained({10, 10, 10, 16, 16, 16, 10, 10, 10}), "slow rank 3 4 5");
  EXPECT_EQ(drained({10, 10, 10, 10, 16, 16, 10, 10, 10}), "slow rank 4; slow rank 5");
}

TEST(Health, ASharedCoreDiffersFromABusyMachine) {
  MadeUp one, all;
  for (int i = 0; i < 10; ++i) {
    one.add({{}, {.busy_s = 0.03, .delayed_s = 0.02, .delayed_fraction = 0.6}});
    all.add(
        {{.delayed_fraction = 0.4}, {.busy_s = 0.03, .delayed_s = 0.02, .delayed_fraction = 0.6}});
  }
  EXPECT_EQ(one.drained(), "shared core 1");
  EXPECT_EQ(all.drained(), "");
  EXPECT_TRUE(all.inconclusive());
}

// A case that ends before another thread gets its core shows nothing, even with 100 samples.
TEST(Health, AShortCaseCannotShowASharedCore) {
  const auto drained = [](int enough, double short_s, double its_fraction) {
    MadeUp made;
    for (int i = 0; i < enough; ++i) made.add({{}, {.delayed_fraction = 0.6}});
    for (int i = 0; i < 10; ++i)
      made.add({{.busy_s = short_s}, {.busy_s = short_s, .delayed_fraction = its_fraction}});
    return made.drained();
  };
  EXPECT_EQ(drained(6, 1e-5, 0), "shared core 1");
  EXPECT_EQ(drained(6, 1e-4, 0), "") << "long enough, and not delayed";
  EXPECT_EQ(drained(0, 1e-5, 0.9), "") << "who is delayed lasts longer: no proof either";
}

// The slow rank sleeps most of the time, so it meets little of the work that delays the other rank.
TEST(Health, NoSharedCoreIsReportedNextToASlowRank) {
  const auto drained = [](int slow) {
    MadeUp made;
    for (int i = 0; i < 10; ++i)
      made.add({{.busy_s = i < slow ? 0.1 : 0.03, .delayed_fraction = 0.1},
                {.busy_s = 0.03, .delayed_s = 0.02, .delayed_fraction = 0.6}});
    return made.drained();
  };
  EXPECT_EQ(drained(10), "slow rank 0");
  EXPECT_EQ(drained(6), "");
  EXPECT_EQ(drained(2), "shared core 1");
}

TEST(Health, JitterOfOneRankIsNamed) {
  MadeUp one, all;
  for (int i = 0; i < 10; ++i) {
    one.add({{.spikes = i % 5 == 0 ? 1.0 : 0}, {.spikes = 4}});
    all.add({{.spikes = 3}, {.spikes = 4}});
  }
  EXPECT_EQ(one.drained(), "jitter 1");
  EXPECT_EQ(all.drained(), "");
}

// Recorded on a busy machine. The spikes are from ranks with threads that waited for a core.
TEST(Health, JitterDuringOtherWorkIsInconclusive) {
  MadeUp busy;
  for (int i = 0; i < 12; ++i) busy.add({{}, {.delayed_fraction = 0.1}});
  for (const double spikes : {12, 54, 4})
    busy.add({{.delayed_fraction = 0.6, .spikes = spikes}, {.delayed_fraction = 0.4, .spikes = 1}});
  EXPECT_EQ(busy.drained(), "");
  EXPECT_TRUE(busy.inconclusive());
  for (int i = 0; i < 3; ++i) busy.add({{.spikes = 8}, {.delayed_fraction = 0.2}});
  EXPECT_EQ(busy.drained(), "jitter 0");
  EXPECT_FALSE(busy.inconclusive());
}

TEST(Health, AUnitFarBelowItsLimitIsNamedUnlessOtherWorkRan) {
  MadeUp low, one_is_fine, busy;
  for (int i = 0; i < 4; ++i)
    for (MadeUp* made : {&low, &one_is_fine, &busy}) {
      Record& record = made->add({{.delayed_fraction = made == &busy ? 0.5 : 0.0}}, "gemm");
      record.counters["flops"] = 1e9;
      record.counters["limit_s"] = 1e-3;
      record.counters["limit_fraction"] = made == &one_is_fine && i == 2 ? 0.2 : 0.1;
    }
  EXPECT_EQ(low.drained(), "below the limit");
  EXPECT_EQ(one_is_fine.drained(), "");
  EXPECT_EQ(busy.drained(), "");
  EXPECT_TRUE(busy.inconclusive());
  low.run.records[0].counters["limit_s"] = low.run.records[1].counters["limit_s"] = 1e-5;
  EXPECT_EQ(low.drained(), "") << "too short, or too few";
}

LinkMatrix links(const std::vector<std::string>& hosts, double GBps) {
  LinkMatrix matrix;
  matrix.hosts = hosts;
  const int ranks = matrix.ranks();
  for (int i = 0; i < ranks * ranks; ++i)
    matrix.bandwidth_GBps.push_back(i % (ranks + 1) == 0 ? 0 : GBps + 0.01 * i);
  matrix.latency_us = matrix.bandwidth_GBps;
  return matrix;
}

TEST(Health, AMachineThatIsSlowInAllPartsIsNamedByItsExpectation) {
  MadeUp made;
  for (int i = 0; i < 8; ++i) {
    Record& record = made.add({{}, {}, {}});
    record.seconds = 2e-3;
    record.counters.insert({{"expected_s", 1e-3}, {"expected_fraction", 0.5}});
  }
  EXPECT_EQ(made.drained(), "");
  for (Record& record : made.run.records) record.counters["expected_floor"] = 0.8;
  EXPECT_EQ(made.drained(), "below the expectation");
}

TEST(Health, ASlowPairIsNamedIfItIsSlowAgainOrFarSlower) {
  const LinkMatrix::SlowPair slow{1, 3, "bandwidth", 5, 10, 10}, far{1, 3, "bandwidth", 2, 10, 40};
  const auto run = [](const std::vector<std::vector<LinkMatrix::SlowPair>>& pairs) {
    MadeUp made;
    for (const auto& of_case : pairs) {
      Record& record = made.add({});
      record.link_matrix = links({"a", "a", "a", "a"}, 10);
      record.link_matrix.slow_pairs = of_case;
    }
    return made;
  };
  EXPECT_EQ(run({{slow}, {slow}}).drained(), "slow link 1 3");
  EXPECT_EQ(run({{far}}).drained(), "slow link 1 3");
  EXPECT_EQ(run({{slow}}).drained(), "");
  EXPECT_TRUE(run({{slow}}).inconclusive());
  EXPECT_EQ(run({{far}, {}}).drained(), "") << "in one of two";
}

// Every pair of one host is slow, which is half of all pairs. The finding is the host.
TEST(Health, NamesTheHostWithTheSlowLink) {
  MadeUp made;
  LinkMatrix& matrix = made.add({}).link_matrix = links({"a", "b", "c", "c"}, 1);
  EXPECT_EQ(made.drained(), "");
  for (std::size_t rank = 0; rank < 4; ++rank)
    if (rank != 1) matrix.bandwidth_GBps[4 + rank] = 0.02;  // its sends
  EXPECT_EQ(made.drained(), "slow link 1");
}

TEST(Health, ACrowdedHostIsNamedOnlyIfFarSlowerInEnoughPasses) {
  const auto drained = [](double GBps, double passes) {
    MadeUp made;
    Record& record = made.add({});
    record.counters["samples"] = passes;
    record.link_matrix = links({"a", "b", "c", "c"}, 1);
    record.link_matrix.crowded_hosts = {"a"};
    for (std::size_t rank = 0; rank < 4; ++rank)
      if (rank != 1) record.link_matrix.bandwidth_GBps[4 + rank] = GBps;
    return made.drained();
  };
  EXPECT_EQ(drained(0.2, 5), "");
  EXPECT_EQ(drained(0.1, 5), "slow link 1");
  EXPECT_EQ(drained(0.1, 4), "");
}

TEST(Health, TheRankWithOtherSoftwareIsNamed) {
  MadeUp made;
  const std::string differs =
      R"({"differences": ["software.nccl.loaded", "environment.SLURM_X", "binding"],
    "same_on_all_ranks": {"host": "node"}, "ranks": [
    {"binding": "0", "software": {"nccl": {"loaded": "2.21"}}, "environment": {"SLURM_X": "0"}},
    {"binding": "1", "software": {"nccl": {"loaded": "2.18"}}, "environment": {"SLURM_X": "1"}},
    {"binding": "2", "software": {"nccl": {"loaded": "2.21"}}, "environment": {"SLURM_X": "2"}}]})";
  EXPECT_EQ(made.drained(differs), "different software 1");
  const Health health = health_of(made.run, differs);
  EXPECT_EQ(health.findings[0].hosts, std::vector<std::string>{"node"});
  EXPECT_EQ(health.findings[0].evidence,
            "software.nccl.loaded is \"2.18\"; the other ranks have \"2.21\"");
  const auto networks = [&](const std::string& first, const std::string& second) {
    return made.drained(fmt::format(
        R"({{"differences": ["software.nccl.network"], "same_on_all_ranks": {{"host": "node"}}, "ranks": [
        {{"software": {{"nccl": {{{}}}}}}}, {{"software": {{"nccl": {{{}}}}}}}, {{}}]}})",
        first, second));
  };
  EXPECT_EQ(networks(R"("network": "IB")", ""), "") << "the others did not use NCCL";
  EXPECT_EQ(networks(R"("network": "IB")", R"("network": "Socket")"), "different software 0 1");
}

TEST(Health, TwoRanksThatDifferAreOneFinding) {
  MadeUp made;
  const Health health = health_of(made.run, R"({"differences": ["software.nccl.loaded"], "ranks": [
    {"software": {"nccl": {"loaded": "2.21"}}}, {"software": {"nccl": {"loaded": "2.18"}}}]})");
  ASSERT_EQ(health.findings.size(), 1u);
  EXPECT_EQ(health.findings[0].ranks, (std::vector{0, 1}));
  EXPECT_EQ(health.findings[0].evidence,
            "software.nccl.loaded is \"2.18\" on rank 1, \"2.21\" on rank 0");
}

using FailureKind = machine::Failure::Kind;

MadeUp failing(const std::vector<machine::Failure>& failures) {
  MadeUp made;
  for (const machine::Failure& failure : failures) {
    Record& record = made.add({});
    record.verdict = Ruling::fail;
    record.failure = failure;
    record.reason = "its text has no numbers";
  }
  return made;
}

TEST(Health, WrongResultsNameTheRankAndItsPeer) {
  const machine::Failure wrong{.kind = FailureKind::wrong_result, .rank = 2, .peer = 1};
  EXPECT_EQ(failing({wrong}).drained(), "wrong result 2 1");
  machine::Failure summed = wrong;
  summed.summed_ranks = 2;
  EXPECT_EQ(failing({summed}).drained(), "wrong result 2 1");
  summed.summed_ranks = 3;
  EXPECT_EQ(failing({summed}).drained(), "wrong result");
  EXPECT_EQ(health_of(failing({wrong}).run, "").level, Level::critical);
}

TEST(Health, FailuresAreNamedByTheirKind) {
  EXPECT_EQ(failing({{.kind = FailureKind::out_of_memory, .rank = 1},
                     {.kind = FailureKind::disk_full, .rank = 1},
                     {.kind = FailureKind::out_of_memory, .rank = 1},
                     {.kind = FailureKind::exception, .rank = 0}})
                .drained(),
            "exception 0; full disk 1; out of memory 1");
  const MadeUp mistake = failing({{.kind = FailureKind::wrong_input, .rank = 0}});
  EXPECT_EQ(mistake.drained(), "") << "a wrong file is not the machine's fault";
  EXPECT_NE(health_text(health_of(mistake.run, "")).find("wrong input"), std::string::npos);
}

// An older run.json has only the text.
TEST(Health, ATextAloneBlamesNoRank) {
  MadeUp made = failing({{}});
  made.run.records[0].failure.reset();
  made.run.records[0].reason = "rank 2: sample 7: wrong; received from rank 1";
  EXPECT_EQ(made.drained(), "wrong result");
}

TEST(Health, ALostRankIsNamed) {
  MadeUp made;
  made.run.context.status = "aborted";
  made.run.context.status_reason = "its text has no numbers";
  auto& failure = made.run.context.failure;
  for (const FailureKind kind :
       {FailureKind::lost_rank, FailureKind::exception, FailureKind::out_of_memory}) {
    failure = machine::Failure{.kind = kind, .rank = 3};
    EXPECT_EQ(made.drained(), "lost rank 3");
  }
  // A rank that waits, in a ring or for a rank out of sight, is not lost.
  for (const FailureKind kind :
       {FailureKind::timeout, FailureKind::peer_failed, FailureKind::deadlock}) {
    failure = machine::Failure{.kind = kind, .rank = 0, .peer = 3};
    EXPECT_EQ(made.drained(), "lost rank");
  }
  failure.reset();
  EXPECT_EQ(made.drained(), "lost rank");
  failure = machine::Failure{.kind = FailureKind::disk_full};
  EXPECT_EQ(made.drained(), "full disk") << "all ranks were there";
}

// The case that ran at that time is reported once.
TEST(Health, TheCaseOfALostRankIsNotAWrongResult) {
  MadeUp made = failing({{.kind = FailureKind::wrong_result, .rank = 1},
                         {.kind = FailureKind::lost_rank, .rank = 3}});
  made.run.context.status = "aborted";
  made.run.context.failure = made.run.records[1].failure;
  EXPECT_EQ(made.drained(), "lost rank 3; wrong result 1");
  for (Record& record : made.run.records) record.traits.reset();
  EXPECT_FALSE(made.inconclusive()) << "a failed case has no traits";
}

TEST(HealthText, HasALinePerFinding) {
  const auto text = [](std::vector<int> ranks, std::vector<std::string> hosts) {
    return health_text({Level::warning, {{Level::warning, "kind", ranks, hosts, "evidence"}}});
  };
  EXPECT_EQ(text({3}, {"a"}), "health: WARN\n  WARN kind: rank 3 (a): evidence\n");
  EXPECT_EQ(text({2, 3}, {"a", "b"}), "health: WARN\n  WARN kind: ranks 2, 3 (a, b): evidence\n");
  EXPECT_EQ(text({2, 1}, {}), "health: WARN\n  WARN kind: ranks 2, 1: evidence\n");
  EXPECT_EQ(text({0, 4, 5, 6, 7, 9}, {}), "health: WARN\n  WARN kind: ranks 0, 4-7, 9: evidence\n");
  EXPECT_EQ(text({}, {}), "health: WARN\n  WARN kind: evidence\n");
  EXPECT_EQ(health_text({}), "health: OK\n");
  EXPECT_EQ(health_text({Level::critical,
                         {{Level::critical, "lost rank", {1}, {"a"}, "rank 1 (pid 7 on a) died"}}}),
            "health: CRITICAL\n  CRITICAL lost rank: rank 1 (pid 7 on a) died\n");
}

TEST(HealthText, NamesAnInjectedFaultOnce) {
  MadeUp made;
  made.run.context.injected = {"slow_rank:rank=1"};
  EXPECT_EQ(health_text(health_of(made.run, "")), "health: OK\n  injected: slow_rank:rank=1\n");
}

}  // namespace
}  // namespace harness

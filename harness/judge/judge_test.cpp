#include "harness/judge/judge.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "machine/base/bytes.h"

namespace harness {
namespace {

using machine::Category;
using machine::Dtype;
using machine::Operation;
using machine::Traffic;
using machine::TrafficLabel;

// A link that counts messages and drops them.
class CountingLink final : public machine::Link {
 public:
  CountingLink() : Link(machine::Group{"tp", {0, 1}, 0}) {}
  machine::Transport transport() const override { return machine::Transport::mpi; }

 private:
  std::uint64_t do_send(int, const void*, std::size_t) override { return 1; }
  void do_wait_sent(int, std::uint64_t) override {}
  std::uint64_t last_sent(int) const override { return 1; }
  void do_receive(int, void*, std::size_t, machine::Store) override {}
  const void* do_receive_in_place(int, std::size_t) override { return nullptr; }
  void do_release(int) override {}
};

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

Record merged(const std::vector<Judge>& judges, std::span<const Oracle> declared) {
  Record record;
  merge(judges, declared, record);
  return record;
}

Record merge_one(const Judge& judge, Oracle oracle) {
  const std::array<Oracle, 1> declared = {oracle};
  return merged({judge}, declared);
}

TEST(Judge, KeepsTheWorstOfEachOracle) {
  Judge judge(0);
  judge.numerics("a", 0.1, 1.0);
  judge.numerics("b", 0.5, 1.0);
  judge.numerics("c", 0.3, 1.0);
  ASSERT_EQ(judge.results().size(), 1u);
  EXPECT_EQ(judge.results()[0].measured, 0.5);
  judge.numerics("d", 2.0, 1.0);
  judge.numerics("e", 9.0, 1.0);
  EXPECT_EQ(judge.results()[0].text, "d, error 2, bound 1");
  EXPECT_EQ(judge.results()[0].ruling, Ruling::fail);
}

TEST(Judge, MergeNamesTheRank) {
  Judge good(0), bad(3);
  good.numerics("w", 0.5, 1.0);
  bad.numerics("w", 2.0, 1.0);
  const std::array<Oracle, 1> declared = {Oracle::numerics};
  const Record judged = merged({good, bad}, declared);
  EXPECT_EQ(judged.verdict, Ruling::fail);
  EXPECT_EQ(judged.reason, "numerics: rank 3: w, error 2, bound 1");
  EXPECT_EQ(judged.failure->rank, 3);
  EXPECT_EQ(judged.oracles[0].rank, 3);
  EXPECT_EQ(judged.counters.at("max_error"), 2.0);
  EXPECT_EQ(judged.counters.at("error_bound"), 1.0);
}

// Times differ between runs, so the compared counters do not include them.
TEST(Judge, TimesRuleButAreNotErrors) {
  const std::array<Oracle, 1> declared = {Oracle::numerics};
  const auto judged = [&](double off) {
    Judge judge(0);
    judge.times("t", off, 0.05);
    return merged({judge}, declared);
  };
  Judge busy(0);
  busy.not_applicable(Oracle::numerics, "busy");
  busy.same_bits("k", 1);
  EXPECT_EQ(judged(0.04).verdict, Ruling::pass);
  EXPECT_EQ(judged(0.04).counters, merged({busy}, declared).counters);
  EXPECT_EQ(judged(0.06).reason, "numerics: rank 0: t: off by 0.06, tolerance 0.05");
  EXPECT_EQ(judged(std::nan("")).verdict, Ruling::fail);
}

TEST(Judge, DeclaredOracleMustRule) {
  Judge judge(0);
  judge.numerics("w", 0, 0);
  const std::array<Oracle, 2> declared = {Oracle::numerics, Oracle::volume};
  const Record judged = merged({judge}, declared);
  EXPECT_EQ(judged.verdict, Ruling::fail);
  EXPECT_EQ(judged.reason, "volume: declared, but never ruled");
  EXPECT_EQ(merged({Judge(0)}, {}).verdict, Ruling::fail);
}

TEST(Judge, VolumeOfALabel) {
  Judge judge(0);
  const Traffic traffic{
      .bytes_sent = 8, .messages_sent = 1, .bytes_received = 16, .messages_received = 2};
  judge.volume("tp", {Operation::all_reduce, Dtype::float32}, traffic, traffic);
  EXPECT_EQ(merge_one(judge, Oracle::volume).verdict, Ruling::pass);
  // Each of the four counts matters.
  for (auto field : {&Traffic::bytes_sent, &Traffic::messages_sent, &Traffic::bytes_received,
                     &Traffic::messages_received}) {
    Judge other(0);
    Traffic off = traffic;
    off.*field += 1;
    other.volume("tp", {Operation::all_reduce, Dtype::float32}, off, traffic);
    EXPECT_EQ(merge_one(other, Oracle::volume).verdict, Ruling::fail);
  }
}

TEST(Judge, VolumeOfALinkFindsUnexpectedTraffic) {
  CountingLink link;
  const TrafficLabel reduce{Operation::all_reduce, Dtype::float32},
      stray{Operation::broadcast, Dtype::float64};
  char data[24] = {};
  link.count_as(reduce);
  link.send(1, data, 24);
  const Traffic expected{.bytes_sent = 24, .messages_sent = 1};
  Judge right(0);
  right.volume(link, {{reduce, expected}});
  const Record passed = merge_one(right, Oracle::volume);
  EXPECT_EQ(passed.verdict, Ruling::pass) << passed.reason;
  EXPECT_EQ(passed.counters.at("wire_bytes_measured"), 24);
  EXPECT_EQ(passed.counters.at("messages_expected"), 1);

  link.count_as(stray);
  link.send(1, data, 8);
  Judge wrong(0);
  wrong.volume(link, {{reduce, expected}});
  EXPECT_TRUE(has(merge_one(wrong, Oracle::volume).reason, "tp broadcast double"));

  Judge missing(0);
  missing.volume(CountingLink(), {{reduce, expected}});
  EXPECT_EQ(merge_one(missing, Oracle::volume).verdict, Ruling::fail);
}

TEST(Judge, VolumeReportsThePassWithTraffic) {
  Judge judge(0);
  const machine::TrafficLabel label{Operation::all_reduce, Dtype::float32};
  judge.volume("tp, forward", label, Traffic{}, Traffic{});
  judge.volume("tp, backward", label, Traffic{8, 1, 8, 1}, Traffic{8, 1, 8, 1});
  judge.volume("tp, weights", label, Traffic{}, Traffic{});
  ASSERT_EQ(judge.results().size(), 1u);
  EXPECT_EQ(judge.results()[0].measured, 8);
  EXPECT_NE(judge.results()[0].text.find("backward"), std::string::npos);
}

TEST(Judge, WireCountersAreTheSumAndTheMaximumOverRanks) {
  Judge first(0), second(1);
  const Traffic traffic{.bytes_sent = 8, .messages_sent = 1};
  first.volume("tp", {}, traffic, traffic);
  second.volume("tp", {}, traffic, traffic);
  const Traffic more{.bytes_sent = 4, .messages_sent = 1};
  second.volume("dp", {}, more, more);
  const std::array<Oracle, 1> declared = {Oracle::volume};
  const Record judged = merged({first, second}, declared);
  EXPECT_EQ(judged.counters.at("wire_bytes_measured"), 8 + 8 + 4);
  EXPECT_EQ(judged.counters.at("wire_bytes_of_rank"), 8 + 4);
}

TEST(Judge, MemoryIsExact) {
  Judge judge(0);
  judge.memory(Category::parameters, 100, 100);
  judge.memory(Category::gradients, 50, 50);
  const Record right = merge_one(judge, Oracle::memory);
  EXPECT_EQ(right.verdict, Ruling::pass);
  EXPECT_EQ(right.counters.at("peak_bytes_measured"), 150);
  EXPECT_EQ(right.memory.size(), 2u);
  judge.memory(Category::buffers, 1, 0);
  EXPECT_TRUE(
      has(merge_one(judge, Oracle::memory).reason, "buffers: 1 bytes at the peak, expected 0"));
}

TEST(Judge, MemoryAtAMomentIsExactAndNotAPeak) {
  Judge judge(0);
  judge.memory("after forward", Category::activations, 9, 9);
  Record judged = merge_one(judge, Oracle::memory);
  EXPECT_EQ(judged.verdict, Ruling::pass);
  EXPECT_FALSE(judged.counters.contains("peak_bytes_measured"));
  EXPECT_TRUE(judged.memory.empty());
  judge.memory("after backward", Category::activations, 9, 0);
  judged = merge_one(judge, Oracle::memory);
  EXPECT_TRUE(has(judged.reason, "activations: 9 bytes after backward, expected 0"));
}

TEST(Judge, ScheduleComparesTextsAndCounts) {
  Judge judge(0);
  judge.schedule("stage 0", "F0 F1 B0 B1", "F0 F1 B0 B1");
  judge.schedule("in flight", 2, 2);
  EXPECT_EQ(merge_one(judge, Oracle::schedule).verdict, Ruling::pass);
  judge.schedule("stage 0", "F0 B0", "F0 F1");
  EXPECT_TRUE(has(merge_one(judge, Oracle::schedule).reason, "executed 'F0 B0', planned 'F0 F1'"));
}

TEST(Judge, DifferingFingerprintsNameTheSides) {
  std::vector<Judge> judges = {Judge(0), Judge(1), Judge(2)};
  for (Judge& judge : judges) judge.same_bits("weight", judge.rank() == 2 ? 0xbu : 0xau);
  const std::array<Oracle, 1> declared = {Oracle::determinism};
  const Record judged = merged(judges, declared);
  EXPECT_EQ(judged.verdict, Ruling::fail);
  EXPECT_EQ(judged.reason,
            "determinism: weight: ranks 0, 1 have 000000000000000a, rank 2 has 000000000000000b");
  EXPECT_EQ(judged.failure->rank, 2);
  judges.pop_back();
  judges[1].same_bits("other", 1);
  judges[0].same_bits("other", 2);
  EXPECT_EQ(merged(judges, declared).failure->rank, -1)
      << "of two ranks neither is known to be right";
}

TEST(Judge, RepeatsOnOneRankAreCompared) {
  Judge judge(0);
  judge.same_bits("out", 1);
  judge.same_bits("out", 1);
  EXPECT_EQ(merge_one(judge, Oracle::determinism).verdict, Ruling::pass);
  judge.same_bits("out", 2);
  EXPECT_EQ(merge_one(judge, Oracle::determinism).verdict, Ruling::fail);
  EXPECT_EQ(merge_one(judge, Oracle::determinism).failure->rank, 0);
}

TEST(Judge, KeysThatAreNeverComparedFail) {
  std::vector<Judge> judges = {Judge(0), Judge(1)};
  for (Judge& judge : judges) judge.same_bits("of rank " + std::to_string(judge.rank()), 1);
  const std::array<Oracle, 1> declared = {Oracle::determinism};
  EXPECT_TRUE(has(merged(judges, declared).reason, "no hashes were compared"));
}

TEST(Judge, SurvivesTheWire) {
  Judge judge(5);
  judge.numerics("w", 0.25, 1.0);
  judge.numerics("nan", std::nan(""), 1.0);
  judge.volume("tp", {}, {.bytes_sent = 3}, {.bytes_sent = 3});
  judge.memory(Category::optimizer, 7, 8);
  judge.schedule("s", "F0", "F0");
  judge.same_bits("k", 0xffffffffffffffffull);
  const std::string text = machine::encode(judge);
  const auto copy = machine::decode<Judge>(text);
  EXPECT_EQ(machine::encode(copy), text);
  EXPECT_EQ(copy.rank(), 5);
  EXPECT_EQ(copy.results().size(), 4u);
  EXPECT_EQ(copy.memory_rows()[0].expected, 8u);
  EXPECT_EQ(copy.fingerprints()[0].hash, 0xffffffffffffffffull);
  EXPECT_THROW(machine::decode<Judge>(std::string_view(text).substr(0, text.size() - 1)),
               std::logic_error);
  EXPECT_THROW(machine::decode<Judge>(text + "x"), std::logic_error);
}

TEST(Judge, NotApplicableOraclesGiveNoVerdict) {
  constexpr Oracle declared[] = {Oracle::numerics, Oracle::volume};
  Judge judge(0);
  judge.not_applicable(Oracle::volume, "the library does not count");
  judge.not_applicable(Oracle::numerics, "nothing was computed");
  EXPECT_EQ(merged({judge}, declared).verdict, Ruling::fail);
  judge.numerics("x", 0, 0);
  const Record judged = merged({judge}, declared);
  EXPECT_EQ(judged.verdict, Ruling::pass) << judged.reason;
  ASSERT_EQ(judged.oracles.size(), 2u);
  EXPECT_EQ(judged.oracles[0].ruling, Ruling::pass);
  EXPECT_EQ(judged.oracles[1].ruling, Ruling::skipped);
}

// The mark may come before or after the ruling, on any rank, and reaches the rank that merges.
TEST(Judge, ASharedReferenceIsStatedForItsOracleOnly) {
  constexpr Oracle declared[] = {Oracle::numerics, Oracle::memory};
  Judge judge(0);
  judge.numerics("x", 0, 0);
  judge.memory(Category::buffers, 8, 8);
  judge.shares_reference(Oracle::memory);
  const Record judged = merged({machine::decode<Judge>(machine::encode(judge))}, declared);
  ASSERT_EQ(judged.oracles.size(), 2u);
  EXPECT_EQ(judged.oracles[0].reference, Reference::independent);
  EXPECT_EQ(judged.oracles[1].reference, Reference::shared);
}

}  // namespace
}  // namespace harness

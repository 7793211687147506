// A failure reaches drain.json as values. No text contains a number.

#include <gtest/gtest.h>

#include "harness/diagnose/health.h"
#include "harness/json/json.h"
#include "harness/record/run_json.h"
#include "harness/run/run.h"
#include "harness/testing/test_folder.h"
#include "machine/base/error.h"

namespace harness {
namespace {

using Kind = machine::Failure::Kind;

// Fails on the last rank of three.
struct Failing {
  static constexpr std::string_view name = "failing";
  static constexpr std::string_view about = "fails";
  static constexpr Oracle oracles[] = {Oracle::schedule};
  struct Case {
    std::string where;
    int ranks = 3;
  };
  static Sweep<Case> sweep() {
    return Sweep<Case>()
        .axis("where", &Case::where, "check")
        .axis("ranks", &Case::ranks, 3)
        .slice({Profile::quick}, "check");
  }
  Failing(const Case& the_case, Context& context)
      : where_(the_case.where), last_(context.group.index == 2) {
    if (where_ == "constructor" && last_) throw machine::MachineError("no room", Kind::disk_full);
  }
  void prepare() {}
  void run() {
    if (where_ == "run" && last_) throw std::bad_alloc();
  }
  void rehearse(Runner) {}
  std::optional<machine::Failure> check(Runner) const {
    if (where_ != "check" || !last_) return std::nullopt;
    return machine::Failure{.kind = Kind::wrong_result, .peer = 1, .text = "wrong elements"};
  }
  void judge(Judge& judge) const { judge.schedule("order", last_ ? "B F" : "F B", "F B"); }
  Cost cost() const { return {}; }

 private:
  std::string where_;
  bool last_;
};

struct Path {
  Record record;
  Json drain;
};

Path path_of(const std::string& where) {
  const TestFolder folder;
  const auto cases = detail::FamilyOf<Failing>().cases({.flags = {{"where", where}}});
  machine::run_ranks(3, [&](machine::World& world) {
    struct Silent : Progress {
      void start(std::size_t) override {}
      void case_started(const std::string&) override {}
      void case_done(const Record&) override {}
      void finish(const RunContext&, const std::vector<Record>&) override {}
    } progress;
    RunOptions options;
    options.max_seconds_per_case = 0.05;
    options.measure_rates = false;
    std::unique_ptr<Sink> sink;
    if (world.rank() == 0) sink = std::make_unique<RunWriter>(options.context, folder.path("run"));
    options.sink = sink.get();
    EXPECT_EQ(run(world, cases, options, progress), case_failed);
  });
  return {read_run(folder.path("run")).records.at(0),
          Json::parse(health_json(health_of(folder.path("run"))))["drain"]};
}

TEST(FailurePath, FromTheCheckOfASample) {
  const Path path = path_of("check");
  EXPECT_EQ(path.record.reason, "rank 2: running: in warm-up: wrong elements");
  EXPECT_EQ(path.record.failure,
            (machine::Failure{.kind = Kind::wrong_result, .rank = 2, .peer = 1}));
  ASSERT_EQ(path.drain.size(), 1u);
  EXPECT_EQ(path.drain[0]["kind"], "wrong result");
  EXPECT_EQ(path.drain[0]["ranks"], (std::vector<int>{2, 1}));
}

TEST(FailurePath, FromAnException) {
  for (const auto& [where, kind, word] : {std::tuple("constructor", Kind::disk_full, "full disk"),
                                          {"run", Kind::out_of_memory, "out of memory"}}) {
    const Path path = path_of(where);
    EXPECT_EQ(path.record.failure, (machine::Failure{.kind = kind, .rank = 2})) << where;
    ASSERT_EQ(path.drain.size(), 1u) << where;
    EXPECT_EQ(path.drain[0]["kind"], word);
    EXPECT_EQ(path.drain[0]["ranks"], std::vector<int>{2});
  }
}

TEST(FailurePath, FromAnOracle) {
  const Path path = path_of("oracle");
  EXPECT_EQ(path.record.failure, (machine::Failure{.kind = Kind::wrong_result, .rank = 2}));
  EXPECT_EQ(path.record.oracles.at(0).rank, 2);
  ASSERT_EQ(path.drain.size(), 1u);
  EXPECT_EQ(path.drain[0]["ranks"], std::vector<int>{2});
}

}  // namespace
}  // namespace harness

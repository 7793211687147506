// Launches of three processes that share a board. One of the processes is lost.

#include "harness/run/watchdog.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>

#include "harness/record/run_json.h"
#include "harness/run/run.h"
#include "harness/run/supervisor.h"
#include "harness/testing/test_folder.h"

namespace harness {
namespace {

using namespace std::chrono_literals;
constexpr int ranks = 3;
constexpr double timeout_s = 1.5;

// A rank with only a board. The watchdog needs no more.
class BoardWorld : public machine::World {
 public:
  BoardWorld(int rank, machine::RankStatus* statuses) {
    group_ = {"world", {0, 1, 2}, rank};
    std::vector<machine::RankStatus*> all;
    for (int i = 0; i < ranks; ++i) all.push_back(statuses + i);
    board_ = std::make_unique<machine::Board>(rank, all);
    board_->mine().pid.store(::getpid());
    board_->mine().state.store(machine::RankState::running);
    board_->set_activity("all_reduce/algorithm:ring/bytes:8", "running");
  }
  const std::string& host(int) const override { return host_; }
  bool ranks_are_threads() const override { return false; }

 private:
  int cores_of_host() const override { return 1; }
  int bind(int, int) override { return 0; }
  SharedMemory shared_memory() override { return {}; }
  std::string host_ = "node1";
};

void wait_for(machine::World& world, int peer) {
  world.board().mine().sequence.store(17);
  world.board().mine().bytes.store(4096);
  world.board().mine().waiting_for.store(peer);
}

class WatchdogTest : public testing::Test {
 protected:
  void SetUp() override {
    void* memory = ::mmap(nullptr, sizeof(machine::RankStatus) * ranks, PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    statuses_ = static_cast<machine::RankStatus*>(memory);
    for (int i = 0; i < ranks; ++i) new (statuses_ + i) machine::RankStatus;
  }
  void TearDown() override { ::munmap(statuses_, sizeof(machine::RankStatus) * ranks); }

  // Returns the exit code of each rank, or minus the signal.
  std::vector<int> launch(const std::function<void(machine::World&, Watchdog&)>& body) {
    { RunWriter({"quick", "test", "", "running", "", {}}, directory_); }
    std::vector<pid_t> pids;
    for (int rank = 0; rank < ranks; ++rank) {
      const pid_t pid = ::fork();
      if (pid == 0) {
        const int file =
            ::open((directory_ + "/stderr").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
        ::dup2(file, STDERR_FILENO);
        BoardWorld world(rank, statuses_);
        {
          Watchdog watchdog(world, directory_, timeout_s, names_);
          body(world, watchdog);
        }
        world.board().mine().state.store(machine::RankState::finished);
        ::_exit(0);
      }
      pids.push_back(pid);
    }
    std::vector<int> ends;
    for (const pid_t pid : pids) {
      int status = 0;
      ::waitpid(pid, &status, 0);
      ends.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
    }
    return ends;
  }
  std::string said() const {
    std::ostringstream text;
    text << std::ifstream(directory_ + "/stderr").rdbuf();
    return text.str();
  }
  void expect_aborted(const std::string& line) const {
    const RunFile run = read_run(directory_);
    EXPECT_EQ(run.context.status, "aborted");
    for (const char* file : {"/junit.xml", "/report.html"})
      EXPECT_TRUE(std::filesystem::exists(directory_ + file)) << file;
    EXPECT_EQ(run.context.status_reason.substr(0, line.size()), line);
    ASSERT_EQ(run.records.size(), 1u);
    EXPECT_EQ(run.records[0].unit, "all_reduce");
    EXPECT_EQ(run.records[0].name, "all_reduce/algorithm:ring/bytes:8");
    EXPECT_EQ(run.records[0].axes.size(), 2u);
    EXPECT_EQ(run.records[0].verdict, Ruling::fail);
    EXPECT_EQ(said(), "shardmark: " + run.context.status_reason + "\n") << "one rank speaks, once";
  }
  std::string who(int rank) const {
    return "rank " + std::to_string(rank) + " (pid " + std::to_string(statuses_[rank].pid.load()) +
           " on node1)";
  }

  TestFolder folder_;
  const std::string directory_ = folder_.path();
  std::vector<std::string> names_;
  machine::RankStatus* statuses_ = nullptr;
};

TEST_F(WatchdogTest, AHealthyLaunchWithIdleRanksEndsNormally) {
  const auto ends = launch([](machine::World& world, Watchdog&) {
    if (world.rank() != 0) wait_for(world, 0);
    for (int i = 0; i < 20; ++i) {  // twice the timeout
      std::this_thread::sleep_for(150ms);
      if (world.rank() == 0)
        world.board().set_activity("all_reduce/algorithm:ring/bytes:8", "running");
    }
  });
  EXPECT_EQ(ends, (std::vector{0, 0, 0}));
  EXPECT_EQ(said(), "");
  EXPECT_EQ(read_run(directory_).context.status, "running");
}

TEST_F(WatchdogTest, ADeadRankEndsTheOthersAtOnce) {
  const auto start = std::chrono::steady_clock::now();
  const auto ends = launch([](machine::World& world, Watchdog&) {
    std::this_thread::sleep_for(500ms);
    if (world.rank() == 0) ::raise(SIGKILL);
    wait_for(world, 0);
    std::this_thread::sleep_for(60s);
  });
  EXPECT_EQ(ends, (std::vector{-SIGKILL, 4, 4}));
  expect_aborted(who(0) +
                 " died during all_reduce/algorithm:ring/bytes:8 (running). The others: rank 1 in "
                 "none, waiting for "
                 "rank 0 at message 17 (4096 bytes); rank 2 in none");
  EXPECT_LT(std::chrono::steady_clock::now() - start, 6s);
}

TEST_F(WatchdogTest, AStoppedRankIsNamedAndKilled) {
  const auto ends = launch([](machine::World& world, Watchdog&) {
    std::this_thread::sleep_for(500ms);
    if (world.rank() == 0) ::raise(SIGSTOP);
    wait_for(world, 0);
    std::this_thread::sleep_for(60s);
  });
  EXPECT_EQ(ends, (std::vector{-SIGKILL, 4, 4}));
  expect_aborted(who(0) + " was stopped (SIGSTOP) for ");
}

TEST_F(WatchdogTest, AHungRankIsNamedByTheLowestRank) {
  const auto ends = launch([](machine::World& world, Watchdog&) {
    if (world.rank() != 2) wait_for(world, 2);
    std::this_thread::sleep_for(60s);
  });
  EXPECT_EQ(ends, (std::vector{4, 4, 4}));
  expect_aborted(who(2) + " made no progress for ");
  EXPECT_EQ(read_run(directory_).context.failure,
            (machine::Failure{.kind = machine::Failure::Kind::lost_rank, .rank = 2}));
}

// A rank that timed out writes first. The watchdog knows the rank that it waited for.
TEST_F(WatchdogTest, TheFirstLostRankReplacesATimeout) {
  using Kind = machine::Failure::Kind;
  RunContext context{"quick", "test", "", "aborted", "it waited", {}};
  context.failure = {.kind = Kind::timeout, .rank = 0, .peer = 1};
  RunWriter(context, directory_).finish(context);
  const auto mark = [&](Kind kind, int rank, const std::string& text) {
    mark_aborted(directory_, {.kind = kind, .rank = rank, .text = text}, {});
    return read_run(directory_).context.status_reason;
  };
  EXPECT_EQ(mark(Kind::deadlock, -1, "a ring"), "it waited");
  EXPECT_EQ(mark(Kind::lost_rank, 1, "no progress"), "no progress");
  EXPECT_EQ(mark(Kind::lost_rank, 2, "died"), "no progress");
  EXPECT_EQ(machine::lost_rank(*read_run(directory_).context.failure), 1);
}

TEST_F(WatchdogTest, ANameTooLongForTheBoardIsCompleted) {
  const std::string name = "gpt_step/model:" + std::string(600, 's') + "/ranks:";
  names_ = {"gpt_step/model:s", name + "3", "gemm/ranks:1"};
  const auto hang = [&](machine::World& world, Watchdog&) {
    world.board().set_activity(name + "3", "running");
    std::this_thread::sleep_for(60s);
  };
  launch(hang);
  EXPECT_EQ(read_run(directory_).records.at(0).name, name + "3");
  EXPECT_NE(said().find(" during " + name + "3"), std::string::npos) << said();
}

TEST_F(WatchdogTest, ARankThatGivesUpIsReportedWithItsReason) {
  const auto ends = launch([](machine::World& world, Watchdog& watchdog) {
    if (world.rank() == 1)
      watchdog.give_up({.kind = machine::Failure::Kind::out_of_memory, .text = "asked for 8 GiB"});
    while (world.board().failed_rank() < 0) std::this_thread::sleep_for(20ms);
    if (world.rank() == 2)
      watchdog.give_up({.kind = machine::Failure::Kind::peer_failed, .peer = 1, .text = "stopped"});
    // Rank 0 leaves its run normally. The end of the watch waits for the report.
  });
  EXPECT_EQ(ends, (std::vector{4, 4, 4}));
  expect_aborted(who(1) +
                 " failed during all_reduce/algorithm:ring/bytes:8 (running): asked for 8 GiB");
  const RunContext context = read_run(directory_).context;
  EXPECT_EQ(context.failure->kind, machine::Failure::Kind::out_of_memory);
  EXPECT_EQ(context.failure->rank, 1);
}

// Returns the exit code of the process that a launcher sees, or minus the signal.
int supervised(const std::function<void()>& rank) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    const int nowhere = ::open("/dev/null", O_WRONLY);
    ::dup2(nowhere, STDERR_FILENO);
    const SupervisedRank supervised;
    rank();
    ::_exit(supervised.ends(0));
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

TEST(Supervisor, PassesOnExitCodesAndHidesAKill) {
  if (machine::cuda::used()) GTEST_SKIP() << "an earlier test of this process used CUDA";
  EXPECT_EQ(supervised([] {}), 0);
  EXPECT_EQ(supervised([] { ::_exit(1); }), 1);
  EXPECT_EQ(supervised([] { ::raise(SIGTERM); }), 128 + SIGTERM);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(supervised([] { ::raise(SIGKILL); }), 4);
  EXPECT_GT(std::chrono::steady_clock::now() - start, 3s) << "the others had no time to report";
  EXPECT_EQ(supervised([] { ::_exit(0); }), 4) << "it did not come to its end";
}

TEST(Supervisor, RefusesAProcessThatUsedCuda) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    machine::cuda::count();
    try {
      const SupervisedRank supervised;
    } catch (const std::logic_error&) {
      ::_exit(7);
    }
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 7);
}

}  // namespace
}  // namespace harness

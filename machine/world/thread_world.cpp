// Ranks as threads of one process: the same control plane and links over its own memory.

#include <algorithm>
#include <exception>
#include <limits>
#include <mutex>
#include <thread>

#include "machine/base/error.h"
#include "machine/world/binding.h"
#include "machine/world/control/pipe.h"
#include "machine/world/world.h"

namespace machine {
namespace {

// State that the threads share.
struct Process {
  explicit Process(int ranks)
      : ranks(ranks), statuses(ranks), cores(static_cast<int>(given_cores().size())) {
    for (int rank = 0; rank < ranks; ++rank)
      pipes.push_back(std::make_unique_for_overwrite<Pipe[]>(ranks));
  }
  Pipe& pipe(int from, int to) { return pipes[to][from]; }
  int ranks;
  std::vector<RankStatus> statuses;
  std::vector<std::unique_ptr<Pipe[]>> pipes;  // by receiver
  int cores;
  std::string host = "threads";
};

class ThreadWorld final : public World {
 public:
  ThreadWorld(Process& process, int rank, double timeout_s) : process_(process) {
    group_ = first_ranks("world", process.ranks, rank);
    start_cores_ = given_cores();
    set_timeout_s(timeout_s);
    std::vector<RankStatus*> statuses;
    for (RankStatus& status : process.statuses) statuses.push_back(&status);
    board_ = std::make_unique<Board>(rank, statuses);
    board_->mine().state.store(RankState::running);
    set_host_device(make_host_device());
    std::vector<Pipe*> from, to;
    for (int peer = 0; peer < process.ranks; ++peer) {
      from.push_back(&process.pipe(peer, rank));
      to.push_back(&process.pipe(rank, peer));
    }
    post_ = std::make_unique<PipePost>(
        std::move(from), std::move(to),
        WaitPolicy{board_.get(), std::numeric_limits<double>::infinity(), true, false});
    set_active_ranks(process.ranks);
  }
  const std::string& host(int) const override { return process_.host; }
  bool ranks_are_threads() const override { return true; }
  SharedMemory shared_memory() override {
    return {nullptr, ~std::size_t{0}, &process_heap(),
            std::vector<std::byte*>(process_.ranks, nullptr)};
  }

  std::vector<std::function<void()>> take_retired() { return std::move(retired_); }

 private:
  int cores_of_host() const override { return process_.cores; }
  int bind(int index, int active) override {  // threads are not bound
    cores_ = cores_of(index, active, start_cores_);
    return std::max(1, process_.cores / active);
  }

  Process& process_;
};

}  // namespace

void run_ranks(int ranks, const std::function<void(World&)>& body, double timeout_s) {
  Process process(ranks);
  std::mutex mutex;
  std::exception_ptr cause, consequence;
  // A thread may still read a link that another thread closed. Links are freed after all have
  // ended.
  std::vector<std::function<void()>> retired;
  const auto run_one = [&](int rank) {
    ThreadWorld world(process, rank, timeout_s);
    try {
      body(world);
      world.board().mine().state.store(RankState::finished);
    } catch (const PeerFailure& failure) {
      const std::lock_guard lock(mutex);
      world.board().fail(failure_of(failure));
      if (!consequence) consequence = std::current_exception();
    } catch (const std::exception& failure) {
      const std::lock_guard lock(mutex);
      if (!cause) cause = std::current_exception();
      world.board().fail(failure_of(failure));
    }
    const std::lock_guard lock(mutex);
    for (auto& give_back : world.take_retired()) retired.push_back(std::move(give_back));
  };
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(run_one, rank);
  }
  for (const auto& give_back : retired) give_back();
  if (cause) std::rethrow_exception(cause);
  if (consequence) std::rethrow_exception(consequence);
}

}  // namespace machine

// Ranks as threads of one process: the same links over the process's own memory.

#include <cstdlib>
#include <exception>
#include <limits>
#include <mutex>
#include <thread>

#include <fmt/format.h>

#include "machine/base/error.h"
#include "machine/link/shared_memory.h"
#include "machine/world/binding.h"
#include "machine/world/world.h"

namespace machine {
namespace {

class Heap final : public HostMemory {
 public:
  void* allocate(std::size_t bytes) override {
    return std::aligned_alloc(64, (bytes + 63) / 64 * 64);
  }
  void free(void* data, std::size_t) override { std::free(data); }
};

// What the threads share.
struct Process {
  explicit Process(int ranks)
      : ranks(ranks),
        statuses(static_cast<std::size_t>(ranks)),
        cores(static_cast<int>(given_cores().size())) {
    for (int rank = 0; rank < ranks; ++rank)
      channels.push_back(std::make_unique<Channel[]>(static_cast<std::size_t>(ranks)));
  }
  int ranks;
  std::vector<RankStatus> statuses;
  std::vector<std::unique_ptr<Channel[]>> channels;  // of the control links, by receiver
  int cores;
  std::string host = "threads";
  Heap heap;
};

class ThreadWorld final : public World {
 public:
  ThreadWorld(Process& process, int rank, double timeout_s) : process_(process) {
    group_ = first_ranks("world", process.ranks, rank);
    set_timeout_s(timeout_s);
    std::vector<RankStatus*> statuses;
    for (RankStatus& status : process.statuses) statuses.push_back(&status);
    board_ = std::make_unique<Board>(rank, statuses);
    board_->mine().state.store(RankState::running);
    host_device_ = make_host_device(process.heap);

    SharedMemoryLink::Wiring wiring;
    wiring.ends.incoming = process.channels[static_cast<std::size_t>(rank)].get();
    for (int peer = 0; peer < process.ranks; ++peer)
      wiring.ends.outgoing.push_back(
          &process.channels[static_cast<std::size_t>(peer)][static_cast<std::size_t>(rank)]);
    wiring.ends.retire = [] {};
    wiring.bases.resize(static_cast<std::size_t>(process.ranks));
    wiring.staging = &process.heap;
    control_ = std::make_unique<SharedMemoryLink>(
        group_, std::move(wiring),
        WaitPolicy{board_.get(), std::numeric_limits<double>::infinity(), true, false});
    set_active_ranks(process.ranks);
  }
  const std::string& host(int) const override { return process_.host; }
  bool ranks_are_threads() const override { return true; }

  std::vector<std::function<void()>> take_retired() { return std::move(retired_); }

 private:
  std::unique_ptr<Link> connect_host(const Group& group, Transport) override {
    return connect_shared_memory(group);
  }
  std::string why_not_host(const Group&, Transport transport) const override {
    return transport == Transport::mpi
               ? "transport mpi needs ranks that are processes; these are threads"
               : "";
  }
  SharedMemory shared_memory() override {
    return {OwnMemory{}, &process_.heap,
            std::vector<std::byte*>(static_cast<std::size_t>(process_.ranks), nullptr)};
  }
  int cores_of_host() const override { return process_.cores; }
  void bind(int index, int active) override {
    cores_ = cores_of(index, active, given_cores());
  }  // not bound: threads

  Process& process_;
};

}  // namespace

void run_ranks(int ranks, const std::function<void(World&)>& body, double timeout_s) {
  Process process(ranks);
  std::mutex mutex;
  std::exception_ptr cause, consequence;
  // Links closed by one thread may still be looked at by another: given back after all have ended.
  std::vector<std::function<void()>> retired;
  const auto run_one = [&](int rank) {
    ThreadWorld world(process, rank, timeout_s);
    try {
      body(world);
      world.board().mine().state.store(RankState::finished);
    } catch (const PeerFailure& failure) {
      const std::lock_guard lock(mutex);
      world.board().fail(failure.what());
      if (!consequence) consequence = std::current_exception();
    } catch (const std::exception& failure) {
      const std::lock_guard lock(mutex);
      if (!cause) cause = std::current_exception();
      world.board().fail(failure.what());
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

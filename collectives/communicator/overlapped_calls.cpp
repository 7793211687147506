// Collectives that overlap the work of their caller: a product on the shares of an all-gather as
// they arrive, a reduce-scatter of the shares of a product as they are made (Wang et al. 2023,
// "Overlap communication with dependent computation via decomposition",
// doi:10.1145/3567955.3567959), and any call during independent work.
//
// The plan runs in the stream of the link, if it has its own: events order its steps with the
// device's. Over shared_memory it runs on a thread, which only uses memory that the caller has
// allocated. Both receive a partial sum while the own share is made. Only a rank's own thread may
// call MPI, so over mpi the steps of the plan and the caller's work alternate: a share is sent
// before the work on the next one and received after it. The library's collectives and tensors that
// the link stages have no shares: then the call runs before or after the work.

#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <vector>

#include "collectives/communicator/communicator.h"
#include "machine/world/step_clock.h"

namespace collectives {

using machine::Event;
using machine::Operation;
using machine::Tensor;

namespace {

struct Cancelled : std::exception {};

// The shares that one thread has finished and the other waits for.
class Shares {
 public:
  explicit Shares(int count) : finished_(static_cast<std::size_t>(count)) {}
  void finish(int share) {
    const std::lock_guard lock(mutex_);
    finished_[static_cast<std::size_t>(share)] = true;
    changed_.notify_all();
  }
  void cancel() {
    const std::lock_guard lock(mutex_);
    cancelled_ = true;
    changed_.notify_all();
  }
  // Throws Cancelled if the share will not be finished. The time counts to the part.
  void wait(int share, machine::Part part, std::string_view group = {}) {
    std::unique_lock lock(mutex_);
    const auto over = [&] { return cancelled_ || finished_[static_cast<std::size_t>(share)]; };
    if (!over()) {
      const machine::During waiting(part, group, machine::StepTimes::other_thread);
      changed_.wait(lock, over);
    }
    if (!finished_[static_cast<std::size_t>(share)]) throw Cancelled();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<bool> finished_;
  bool cancelled_ = false;
};

// Calls work and waits for the worker, whose job uses the frame of the caller.
template <class Work>
void work_beside(machine::Worker& worker, Shares& shares, const Work& work) {
  try {
    work();
  } catch (const Cancelled&) {  // the worker throws the reason
  } catch (...) {
    shares.cancel();
    try {
      worker.wait_all();
    } catch (const std::exception&) {
      // The failure of the work came first.
    }
    throw;
  }
  worker.wait_all();
}

std::byte* bytes_of(const Tensor& tensor) { return static_cast<std::byte*>(tensor.data()); }

// Communication of this thread, except while it does other work.
class DuringPlan {
 public:
  explicit DuringPlan(std::string_view group) : group_(group) { during_.emplace(part, group_); }
  void except(const Communicator::OfShare& work, int share) {
    during_.reset();
    work(share);
    during_.emplace(part, group_);
  }

 private:
  static constexpr auto part = machine::Part::communication;
  std::string_view group_;
  std::optional<machine::During> during_;
};

}  // namespace

Communicator::Beside Communicator::beside(const Tensor& tensor) const {
  if (size() == 1) return Beside::none;
  if (link_->has_own_stream()) return Beside::stream;
  return link_->transport() == machine::Transport::shared_memory &&
                 tensor.device().readable_by_host()
             ? Beside::thread
             : Beside::none;
}

machine::Worker& Communicator::worker() {
  if (worker_) return *worker_;
  lane_ = "progress of " + group().name;
  worker_ = std::make_unique<machine::Worker>(
      true,
      machine::Worker::Recorded{lane_.c_str(), machine::Part::communication, group().name.c_str()});
  return *worker_;
}

void Communicator::all_gather_while(const Tensor& in, const Tensor& out, const OfShare& use) {
  Execution* const plan = plan_of(Operation::all_gather, in, out);
  if (!plan) {
    run(Operation::all_gather, {}, in, out);
    for (int share = 0; share < size(); ++share) use(share);
    return;
  }
  const auto start = [&](const OfShare& there) {
    plan->run(*link_, machine::Reduction::sum, bytes_of(in), bytes_of(out),
              {.before_read = {}, .after_write = there});
  };
  const Beside where = beside(in);
  if (where == Beside::none) {
    DuringPlan during(group().name);
    return start([&](int share) { during.except(use, share); });
  }
  if (where == Beside::stream) {
    std::vector<std::unique_ptr<Event>> there(static_cast<std::size_t>(size()));
    const auto at = [&](int share) -> auto& { return there[static_cast<std::size_t>(share)]; };
    link_->start_after_device();
    start([&](int share) { at(share) = stream().record(); });
    for (const int share : plan->share_order()) {
      {
        const machine::During exposed(machine::Part::communication, group().name);
        device().stream().wait(*at(share));
      }
      use(share);
    }
    return link_->end_before_device();  // peers have read `in` and `out`
  }
  Shares there(size());
  worker().submit([&] {
    try {
      const machine::During over(machine::Part::communication, group().name);
      start([&](int share) { there.finish(share); });
    } catch (...) {
      there.cancel();
      throw;
    }
  });
  work_beside(worker(), there, [&] {
    for (const int share : plan->share_order()) {
      there.wait(share, machine::Part::communication, group().name);
      use(share);
    }
  });
}

void Communicator::reduce_scatter_while(const Tensor& in, const Tensor& out, const OfShare& make) {
  Execution* const plan = plan_of(Operation::reduce_scatter, in, out);
  if (!plan) {
    for (int share = 0; share < size(); ++share) make(share);
    return run(Operation::reduce_scatter, {}, in, out);
  }
  const Beside where = beside(in);
  const auto start = [&](const OfShare& needed) {
    plan->run(*link_, machine::Reduction::sum, bytes_of(in), bytes_of(out),
              {.before_read = needed, .after_write = {}, .receives_first = where != Beside::none});
  };
  if (where == Beside::none) {
    DuringPlan during(group().name);
    return start([&](int share) { during.except(make, share); });
  }
  if (where == Beside::stream) {
    std::vector<std::unique_ptr<Event>> made(static_cast<std::size_t>(size()));
    link_->start_after_device();
    for (const int share : plan->share_order()) {
      make(share);
      made[static_cast<std::size_t>(share)] = device().stream().record();
    }
    const machine::During exposed(machine::Part::communication, group().name);
    start([&](int share) { stream().wait(*made[static_cast<std::size_t>(share)]); });
    return link_->end_before_device();
  }
  Shares made(size());
  worker().submit([&] {
    const machine::During over(machine::Part::communication, group().name);
    start([&](int share) { made.wait(share, machine::Part::other); });
  });
  work_beside(worker(), made, [&] {
    for (const int share : plan->share_order()) {
      make(share);
      made.finish(share);
    }
  });
}

void Communicator::run_beside(Operation operation, const Tensor& in, const Tensor& out,
                              const std::function<void()>& work) {
  const Beside where = beside(in);
  if (where == Beside::none) {
    run(operation, {}, in, out);
    return work();
  }
  if (where == Beside::stream) {
    const auto end = run_apart([&] { run(operation, {}, in, out); });
    work();
    const machine::During exposed(machine::Part::communication, group().name);
    return device().stream().wait(*end);
  }
  plan_of(operation, in, out);  // allocates on this thread, to which the device's ledger belongs
  worker().submit([&] { run(operation, {}, in, out); });
  Shares none(0);
  work_beside(worker(), none, work);
}

}  // namespace collectives

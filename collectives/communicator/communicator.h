#pragma once
// Collectives among the ranks of a group: plans that run over a link, or the library's own
// collectives.
//
//   Communicator tp(world, grid.group(Axis::tp), Transport::shared_memory);
//   tp.all_reduce(partial, whole);                       // may be the same tensor
//
// Tensors of all ranks of a call agree in dtype and size. Over cuda_ipc and nccl they are on the
// world's CUDA device, and calls are queued on its stream, or on a stream of the link that starts
// after it and that it waits for (LinkStream::own). Over other transports, tensors of a CUDA
// device are staged through host memory (staging.h), and the copy of a result is queued. Sums round
// once per addition to the tensors' dtype, in the order of the plan. This order is the same on
// every rank, so results of all_reduce are bitwise equal on all ranks. avg divides the sum once.
// Operations that only move data ignore the reduction. Throws machine::Timeout,
// machine::PeerFailure, and std::invalid_argument for sizes that do not match.

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "collectives/communicator/group_algorithms.h"
#include "collectives/communicator/staging.h"
#include "collectives/execute.h"
#include "collectives/plan.h"
#include "machine/device/kernels.h"
#include "machine/device/tensor.h"
#include "machine/world/worker.h"
#include "machine/world/world.h"

namespace collectives {

// Returns direct_one_step for the smallest all-reduces, dissemination for barriers, and ring for
// all-gather and broadcast over mpi. Returns direct for all other operations; its sums do not
// depend on the place of a value in a buffer.
std::string_view default_algorithm(machine::Operation operation, machine::Transport transport,
                                   std::size_t bytes, int ranks);

class Communicator {
  using Operation = machine::Operation;
  using Reduction = machine::Reduction;
  using Tensor = machine::Tensor;

 public:
  Communicator(machine::World& world, const machine::Group& group, machine::Transport transport,
               machine::LinkStream stream = machine::LinkStream::of_device);
  Communicator(machine::World& world, std::unique_ptr<machine::Link> link);
  ~Communicator();

  const machine::Group& group() const { return link_->group(); }
  int rank() const { return link_->rank(); }
  int size() const { return link_->size(); }
  machine::Link& link() { return *link_; }
  const machine::Link& link() const { return *link_; }

  // Sets the algorithms of calls that name none, in a group of several ranks (default:
  // default_algorithm). Equal on all ranks of the group.
  void set_algorithms(GroupAlgorithms algorithms) {
    algorithms_ = std::move(algorithms);
    last_call_.reset();
  }
  const GroupAlgorithms& algorithms() const { return algorithms_; }

  // An empty algorithm selects the group's. `out` may be `in`.
  void all_reduce(const Tensor& in, const Tensor& out, std::string_view algorithm = {},
                  Reduction reduction = Reduction::sum);
  void all_reduce(const Tensor& data) { all_reduce(data, data); }
  // `out` has size() times as many elements as `in`. Rank i's share is at i * in.size(). `in` may
  // be the own share of `out`.
  void all_gather(const Tensor& in, const Tensor& out, std::string_view algorithm = {}) {
    run(Operation::all_gather, algorithm, in, out);
  }
  // `in` has size() times as many elements as `out`. `out` may be the own share of `in`.
  void reduce_scatter(const Tensor& in, const Tensor& out, std::string_view algorithm = {},
                      Reduction reduction = Reduction::sum) {
    run(Operation::reduce_scatter, algorithm, in, out, reduction);
  }
  // Sends share i of `in` to rank i, which stores it as the share of the sending rank in its `out`.
  // Not in place.
  void all_to_all(const Tensor& in, const Tensor& out, std::string_view algorithm = {}) {
    run(Operation::all_to_all, algorithm, in, out);
  }
  // Sends the parts of `in` to their ranks and receives theirs into `out`. The matrix is the same
  // on all ranks. Not in place. Keeps the last few matrices of each dtype and algorithm, by
  // address.
  void all_to_all_v(const Tensor& in, const Tensor& out,
                    const std::shared_ptr<const TrafficMatrix>& traffic,
                    std::string_view algorithm = {}) {
    run(Operation::all_to_all_v, algorithm, in, out, Reduction::sum, 0, traffic);
  }
  void barrier(std::string_view algorithm = {});

  // Calls queue_calls, which calls this communicator and may queue other work on the link's stream.
  // The device's stream does not wait for it. Returns the end of the work, which the device's
  // stream can wait for. Throws std::logic_error unless the link has a stream of its own.
  std::unique_ptr<machine::Event> run_apart(const std::function<void()>& queue_calls);

  // Calls that overlap a rank's own work (overlapped_calls.cpp). Bytes, messages and bits of the
  // result are those of run with the group's algorithm. A function queues work of the device's
  // stream.
  using OfShare = std::function<void(int share)>;
  // Calls use(share) for every share of `out`, each as soon as it is there for later work.
  void all_gather_while(const Tensor& in, const Tensor& out, const OfShare& use);
  // Calls make(share), which writes that share of `in`, for every share. Made shares are on the
  // wire while the next one is made.
  void reduce_scatter_while(const Tensor& in, const Tensor& out, const OfShare& make);
  // Runs the call and work() in parallel. Neither may write memory that the other reads or writes.
  void run_beside(Operation operation, const Tensor& in, const Tensor& out,
                  const std::function<void()>& work);

  // Runs any operation by name. Ranks other than the root ignore `in` of broadcast and scatter, and
  // `out` of reduce and gather. The root's `in` of scatter and `out` of gather have size() times
  // the elements of a share. send_receive sends `in` to the next rank and receives `out` from the
  // previous rank (nccl-tests' sendrecv). `out` may be `in`, except for all_to_all(_v) and
  // send_receive.
  void run(Operation operation, std::string_view algorithm, const Tensor& in, const Tensor& out,
           Reduction reduction = Reduction::sum, int root = 0,
           const std::shared_ptr<const TrafficMatrix>& traffic = {});
  // Returns the number of near ranks for hierarchical algorithms: the ranks of a host, if all hosts
  // of the group have the same number of consecutive ranks; otherwise the largest divisor of size()
  // up to its square root.
  int inner() const { return inner_; }
  void set_inner(int inner);  // throws std::invalid_argument unless it divides size()
  // Returns the device whose buffers the link moves without staging.
  machine::Device& device() const;
  // Returns the stream that calls are queued on.
  machine::Stream& stream() const { return link_->stream() ? *link_->stream() : device().stream(); }
  // Returns the rounds of a call over a rendezvous link; null for other links. The first call with
  // a key agrees on the rounds over the world's control plane. It is collective, on the rank's own
  // thread.
  const std::vector<Round>* rounds(CallKey key);

 private:
  Execution& execution(const CallKey& key, const Call& call);
  void run_plan(Execution& plan, Operation operation, const Tensor& in, const Tensor& out,
                Reduction reduction, int root);
  // Returns the plan of a call by the group's algorithm. Null: the library's, or of tensors that
  // the link stages.
  Execution* plan_of(Operation operation, const Tensor& in, const Tensor& out);
  // Selects where a call overlaps other work: in the link's stream, on a thread, or nowhere.
  enum class Beside : unsigned char { stream, thread, none };
  Beside beside(const Tensor& tensor) const;
  machine::Worker& worker();
  bool is_in_place(Operation operation, int root, const Tensor& in, const Tensor& out) const;
  // A call by a plan. The same call again, as a training step makes it, needs no checks and no
  // search for its algorithm and its key, which the smallest calls would feel.
  struct LastCall {
    Operation operation{};
    std::string algorithm;  // as it was given
    const void *in = nullptr, *out = nullptr;
    std::int64_t in_size = 0, out_size = 0;
    machine::Dtype in_dtype{}, out_dtype{};
    int root = 0;
    Execution* plan = nullptr;
    bool is(Operation its_operation, std::string_view its_algorithm, const Tensor& its_in,
            const Tensor& its_out, int its_root) const;
  };

  machine::World& world_;
  std::unique_ptr<machine::Link> link_;
  GroupAlgorithms algorithms_;
  bool apart_ = false;  // in run_apart
  int inner_ = 1;
  int ranks_of_host_ = 0;  // of this rank's, in the group
  Tensor nothing_;
  Staging staging_;
  std::map<CallKey, std::unique_ptr<Execution>> executions_;
  std::map<CallKey, std::vector<Round>> rounds_;  // by key with in_place false
  const CallKey* last_key_ = nullptr;
  Execution* last_ = nullptr;
  std::optional<LastCall> last_call_;
  std::string lane_;
  std::unique_ptr<machine::Worker> worker_;  // last: its thread uses the others
};

}  // namespace collectives

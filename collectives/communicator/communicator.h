#pragma once
// Collectives among the ranks of a group: plans run over a link, or the library's own.
//
//   Communicator tp(world, grid.group(Axis::tp), Transport::shared_memory);
//   tp.all_reduce(partial, whole);                       // may be the same tensor
//
// Tensors of all ranks of a call agree in dtype and size. Over cuda_ipc and nccl they are of the
// world's CUDA device, and calls are queued on its stream; over the others, tensors of a CUDA
// device are staged through host memory (counted as buffers). Sums round once per addition to the
// tensors' dtype, in the order of the plan, which is the same on every rank: results of all_reduce
// are bitwise equal on all ranks. avg divides the sum, once. What moves only ignores the reduction.
// Throws machine::Timeout, machine::PeerFailure; std::invalid_argument for sizes that don't fit.

#include <map>
#include <memory>
#include <string_view>

#include "collectives/execute.h"
#include "collectives/plan.h"
#include "machine/device/kernels.h"
#include "machine/device/tensor.h"
#include "machine/world/world.h"

namespace collectives {

// "library" runs the library's own collective: MPI's over mpi, NCCL's over nccl.
inline constexpr std::string_view library = "library";

// One step for the smallest all-reduces, direct for other reductions (their bits do not depend on
// where in a buffer a value lies), direct on one host and ring between hosts for what only moves.
std::string_view default_algorithm(machine::Operation operation, machine::Transport transport,
                                   std::size_t bytes, int ranks);

class Communicator {
  using Operation = machine::Operation;
  using Reduction = machine::Reduction;
  using Tensor = machine::Tensor;

 public:
  Communicator(machine::World& world, const machine::Group& group, machine::Transport transport);
  Communicator(machine::World& world, std::unique_ptr<machine::Link> link);
  ~Communicator();

  const machine::Group& group() const { return link_->group(); }
  int rank() const { return link_->rank(); }
  int size() const { return link_->size(); }
  machine::Link& link() { return *link_; }
  const machine::Link& link() const { return *link_; }

  // An empty algorithm means default_algorithm's. out may be in.
  void all_reduce(const Tensor& in, const Tensor& out, std::string_view algorithm = {},
                  Reduction reduction = Reduction::sum);
  void all_reduce(const Tensor& data) { all_reduce(data, data); }
  // out holds size() times in: rank i's share at i * in.size(). in may be its own share of out.
  void all_gather(const Tensor& in, const Tensor& out, std::string_view algorithm = {}) {
    run(Operation::all_gather, algorithm, in, out);
  }
  // in holds size() times out. out may be its own share of in.
  void reduce_scatter(const Tensor& in, const Tensor& out, std::string_view algorithm = {},
                      Reduction reduction = Reduction::sum) {
    run(Operation::reduce_scatter, algorithm, in, out, reduction);
  }
  // Share i of in to rank i, which puts it at share rank() of its out. Not in place.
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

  // Any operation by name. Other ranks than the root ignore `in` of broadcast and scatter, and
  // `out` of reduce and gather. The root's `in` of scatter and `out` of gather hold size() times
  // the elements of the others. send_receive sends `in` to the next rank and receives `out` from
  // the one before (nccl-tests' sendrecv). out may be in, except for all_to_all(_v) and
  // send_receive.
  void run(Operation operation, std::string_view algorithm, const Tensor& in, const Tensor& out,
           Reduction reduction = Reduction::sum, int root = 0,
           const std::shared_ptr<const TrafficMatrix>& traffic = {});
  // Number of near ranks for hierarchical algorithms: the ranks of a host, if the group's hosts
  // hold equal numbers of ranks in a row; else the largest divisor of size() up to its square root.
  int inner() const { return inner_; }
  void set_inner(int inner);  // throws std::invalid_argument when it does not divide size()
  // The device whose buffers the link moves without staging.
  machine::Device& device() const;
  // The rounds of a call over a rendezvous link; null for other links. The first call with a key
  // agrees on them over the world's control plane: it is collective, on the rank's own thread.
  const std::vector<Round>* rounds(CallKey key);

 private:
  Execution& execution(const CallKey& key, const Call& call);
  bool is_in_place(Operation operation, int root, const Tensor& in, const Tensor& out) const;

  machine::World& world_;
  std::unique_ptr<machine::Link> link_;
  int inner_ = 1;
  Tensor nothing_;
  std::map<CallKey, std::unique_ptr<Execution>> executions_;
  std::map<CallKey, std::vector<Round>> rounds_;  // of keys that are not in place
  const CallKey* last_key_ = nullptr;
  Execution* last_ = nullptr;
};

}  // namespace collectives

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
#include <string>
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
  void all_reduce(const machine::Tensor& in, const machine::Tensor& out,
                  std::string_view algorithm = {},
                  machine::Reduction reduction = machine::Reduction::sum);
  void all_reduce(const machine::Tensor& data) { all_reduce(data, data); }
  // out holds size() times in: rank i's share at i * in.size(). in may be its own share of out.
  void all_gather(const machine::Tensor& in, const machine::Tensor& out,
                  std::string_view algorithm = {});
  // in holds size() times out. out may be its own share of in.
  void reduce_scatter(const machine::Tensor& in, const machine::Tensor& out,
                      std::string_view algorithm = {},
                      machine::Reduction reduction = machine::Reduction::sum);

  // The root's `in` to every rank's `out`; elsewhere `in` is ignored.
  void broadcast(const machine::Tensor& in, const machine::Tensor& out, int root,
                 std::string_view algorithm = {});
  // To the root's `out`; elsewhere `out` is ignored. out may be in.
  void reduce(const machine::Tensor& in, const machine::Tensor& out, int root,
              std::string_view algorithm = {},
              machine::Reduction reduction = machine::Reduction::sum);
  // The root's `out` holds size() times in; elsewhere it is ignored.
  void gather(const machine::Tensor& in, const machine::Tensor& out, int root,
              std::string_view algorithm = {});
  // The root's `in` holds size() times out; elsewhere it is ignored.
  void scatter(const machine::Tensor& in, const machine::Tensor& out, int root,
               std::string_view algorithm = {});
  // Share i of in to rank i, which puts it at share rank() of its out. Not in place.
  void all_to_all(const machine::Tensor& in, const machine::Tensor& out,
                  std::string_view algorithm = {});
  // Parts of in to their ranks, and theirs to out, as the matrix says, the same on all ranks. Not
  // in place. Of each dtype and algorithm the last few matrices are remembered, by their address.
  void all_to_all_v(const machine::Tensor& in, const machine::Tensor& out,
                    const std::shared_ptr<const TrafficMatrix>& traffic,
                    std::string_view algorithm = {});
  // in to the next rank, out from the one before (nccl-tests' sendrecv). Not in place.
  void send_receive(const machine::Tensor& in, const machine::Tensor& out,
                    std::string_view algorithm = {});
  void barrier(std::string_view algorithm = {});

  // Any of them by name; root and traffic where there are.
  void run(machine::Operation operation, std::string_view algorithm, const machine::Tensor& in,
           const machine::Tensor& out, machine::Reduction reduction = machine::Reduction::sum,
           int root = 0, const std::shared_ptr<const TrafficMatrix>& traffic = {});
  // Ranks that hierarchical algorithms take as near each other: those of a host, where the group's
  // hosts hold equally many in a row; on one host the largest divisor of size() up to its root.
  int inner() const { return inner_; }
  void set_inner(int inner);  // throws std::invalid_argument when it does not divide size()
  // Of the buffers that the link moves without staging.
  machine::Device& device() const;
  // Of a call over a rendezvous link; null for other links. The first call of its kind agrees on
  // them over the world's control plane: it is collective, and of the rank's own thread.
  const std::vector<Round>* rounds(CallKey key);

 private:
  Execution& execution(const CallKey& key, const Call& call);
  bool is_in_place(machine::Operation operation, int root, const machine::Tensor& in,
                   const machine::Tensor& out) const;

  machine::World& world_;
  std::unique_ptr<machine::Link> link_;
  int inner_ = 1;
  machine::Tensor nothing_;
  std::map<CallKey, std::unique_ptr<Execution>> executions_;
  std::map<CallKey, std::vector<Round>> rounds_;  // of keys that are not in place
  const CallKey* last_key_ = nullptr;
  Execution* last_ = nullptr;
};

}  // namespace collectives

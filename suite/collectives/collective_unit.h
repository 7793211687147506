#pragma once
// The common part of all collectives as units. Integer patterns make the answer exact in any order,
// out of place and in place. The volume is the algorithm's formula. Replicas and repeats agree in
// every bit. The yardstick is the library's collective on the same buffers. Timed runs are out of
// place; those of broadcast can be in place, as MPI_Bcast and torch.distributed.broadcast are.
//
// `bytes` is the size that nccl-tests prints: the whole. If an operation deals in shares, the whole
// is all shares together (the output of all_gather, the input of reduce_scatter). If ranks do not
// divide it, each share is rounded down, to at least one element. 0 bytes are a call without
// elements, which sends its messages. For all_to_all_v it is the size that the busiest rank sends
// or receives (traffic.h).
//
// `inner`: number of near ranks, for algorithms that read it. auto: the communicator's
// (communicator.h).

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/communicator/choose.h"
#include "collectives/communicator/communicator.h"
#include "collectives/cost.h"
#include "suite/collectives/expected.h"
#include "suite/options/options.h"
#include "suite/reference/unit.h"

namespace suite {

struct CollectiveCase {
  int ranks = 2;
  Transport transport{};
  std::string algorithm;
  Dtype dtype{};
  machine::Reduction reduction = machine::Reduction::sum;  // an axis if the operation reduces
  harness::Bytes bytes{};
  int root = 0;  // an axis if the operation has a root
  std::string inner{collectives::automatic};
  std::string traffic{};             // of all_to_all_v
  bool in_place = false;             // an axis of broadcast
  bool graph = false;                // an axis on GPUs: runs are launches of a captured call
  machine::Registered registered{};  // the memory of the buffers
};

// Returns the names of the operation's algorithms.
std::vector<std::string> algorithm_names(Operation operation);
Sweep<CollectiveCase> collective_sweep(Operation operation, const harness::PlanRequest& request);
// Returns why the algorithm `library` does not run over the case's transport, or empty.
std::string why_not_library(const CollectiveCase& c);
// Returns why messages of the transport cannot be captured in a graph, or empty.
std::string why_not_graph(Transport transport);
std::string collective_why_not(Operation operation, const CollectiveCase& c,
                               const Context& context);
// Returns the case's inner. 0: the communicator's.
inline int inner_of(const CollectiveCase& c) { return number_of<int>(c.inner).value_or(0); }
// Returns a communicator for the library's collective on the same buffers, or null.
std::unique_ptr<collectives::Communicator> library_beside(Operation operation,
                                                          const CollectiveCase& c,
                                                          const Context& context);

// The rank whose message is the last to write element `index` of the call's output. -1: this rank's
// own copy or sum writes it. summed: the message was added to this rank's value. The plan splits
// each share into call.pieces.
struct Writer {
  int rank = -1;
  bool summed = false;
};
Writer last_writer(const collectives::Algorithm& algorithm, const collectives::Call& call,
                   std::int64_t count, std::int64_t index);

class CollectiveUnit {
 public:
  // traffic: of all_to_all_v, if it is not the case's.
  CollectiveUnit(Operation operation, const CollectiveCase& c, Context& context,
                 std::shared_ptr<const collectives::TrafficMatrix> traffic = {});

  void prepare() {}  // the input is not modified
  void run() { graph_ ? graph_->launch() : run(buffers_); }
  bool only_queues() const { return communicator_->link().stream() != nullptr; }
  bool has_yardstick() const { return library_ != nullptr; }
  void yardstick() {
    library_graph_ ? library_graph_->launch() : call(*library_, collectives::library, buffers_);
  }
  // Runs once with other values in some elements across the input, and then spoils some elements of
  // the output. The check then detects a run that writes nothing or leaves its last output. The
  // caches are in the same state as after a run.
  void rehearse(harness::Runner runner);
  // Compares the output's hash, or regenerates the right values if the host cannot read the output.
  // Returns the wrong elements and their sender, or nothing.
  std::optional<machine::Failure> check(harness::Runner runner);
  void judge(Judge& judge);
  Cost cost() const;
  void describe(Description& description) const;

  // The buffers of one call. A tensor is empty if the rank has no such buffer.
  struct Buffers {
    Tensor in, out;
  };
  const Buffers& buffers() const { return buffers_; }  // of run()
  Buffers in_place();
  // Fills the input with the pattern, and the output with a value that is never right.
  void fill(const Buffers& buffers) const;
  void run(const Buffers& buffers) { call(*communicator_, algorithm_, buffers); }
  // Returns the wrong elements of an output of this rank, after the work of the device's stream.
  WrongElements wrong_in(const Tensor& output) const;
  const std::string& algorithm() const { return algorithm_; }  // the case's, or the choice of auto
  const std::string& note() const { return note_; }

 private:
  Question question() const;
  Tensor right_output() const;  // empty if this rank has no output
  double bound_of_library() const;
  std::unique_ptr<collectives::Communicator> connect() const;
  Buffers out_of_place();
  std::size_t bytes_of_buffers() const;  // of run()
  Tensor registered_buffer(bool held, std::int64_t elements);
  void call(collectives::Communicator& communicator, std::string_view algorithm,
            const Buffers& buffers);
  std::int64_t mark_stride(const Tensor& tensor) const;
  void mark(bool marked);  // some elements of the input
  void spoil();            // some elements of the output
  void capture();
  void judge_numerics(Judge& judge, std::string_view how, const Buffers& buffers);
  void judge_output(Judge& judge, std::string_view how, const Tensor& output);
  void judge_volume(Judge& judge);
  void judge_rounding(Judge& judge);
  void judge_memory(Judge& judge);
  collectives::Call call_of_rank() const;
  bool uses_library() const { return algorithm_ == collectives::library; }

  Operation operation_;
  CollectiveCase case_;
  Context& context_;
  std::shared_ptr<const collectives::TrafficMatrix> traffic_;
  std::unique_ptr<collectives::Communicator> communicator_, library_;
  std::unique_ptr<machine::Graph> graph_, library_graph_;  // with the axis graph
  Tensor errors_;                                          // of the last check
  harness::PeakMeter memory_;
  std::int64_t count_;              // elements of the whole, of a share, or of the busiest rank
  std::vector<Tensor> registered_;  // in the order in which all ranks made them
  Buffers buffers_;
  std::string algorithm_;
  std::string note_;
  std::uint64_t expected_hash_ = 0, fingerprint_ = 0;
  std::vector<std::byte> spoilt_;  // inverted first bytes of the right output, every mark_stride
};

}  // namespace suite

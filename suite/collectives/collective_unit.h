#pragma once
// What all collectives have in common as units: integer patterns make the answer exact in any
// order, out of place and in place; the volume is the algorithm's formula, replicas and repeats
// agree in every bit, and the library's collective on the same buffers is the yardstick. What is
// timed is out of place.
//
// `bytes` is the size that nccl-tests prints: the whole, which where an operation deals in shares
// is all shares together (of all_gather the output, of reduce_scatter the input). Where ranks do
// not divide it, each share is rounded down, to one element at least; 0 bytes are a call of
// nothing, whose messages are sent all the same. Of all_to_all_v it is what the busiest rank sends
// or receives (traffic.h).
//
// `inner`, where some algorithm asks: how many ranks in a row it takes as near each other; auto is
// what the communicator finds (communicator.h).

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/communicator/choose.h"
#include "collectives/communicator/communicator.h"
#include "collectives/cost.h"
#include "harness/unit/unit.h"
#include "suite/collectives/expected.h"

namespace suite {

struct CollectiveCase {
  int ranks = 2;
  machine::Transport transport{};
  std::string algorithm;
  machine::Dtype dtype{};
  machine::Reduction reduction = machine::Reduction::sum;  // an axis where something is reduced
  harness::Bytes bytes{};
  int root = 0;  // an axis where there is one
  std::string inner{collectives::automatic};
  std::string traffic;  // of all_to_all_v
};

// Whether all ranks of the case do the same work, and whether it may come near the limit.
bool has_equal_work(machine::Operation operation, const CollectiveCase& c);
bool limit_applies_to(machine::Operation operation, const CollectiveCase& c);
harness::Sweep<CollectiveCase> collective_sweep(machine::Operation operation,
                                                const harness::PlanRequest& request);
// The case's inner; 0: what the communicator finds.
int inner_of(const CollectiveCase& c);
std::string collective_why_not(const CollectiveCase& c, const harness::Context& context);
// Where the library's collective is on the same buffers, beside a case of ours; or nothing.
std::unique_ptr<collectives::Communicator> library_beside(const CollectiveCase& c,
                                                          const harness::Context& context);

class CollectiveUnit {
 public:
  // traffic: of all_to_all_v, where it is not the case's.
  CollectiveUnit(machine::Operation operation, const CollectiveCase& c, harness::Context& context,
                 std::shared_ptr<const collectives::TrafficMatrix> traffic = {});

  void prepare() {}  // out of place: the input stays as it is
  void run() { call(*communicator_, algorithm_, buffers_); }
  bool only_queues() const { return communicator_->link().stream() != nullptr; }
  bool has_yardstick() const { return library_ != nullptr; }
  void yardstick() { call(*library_, collectives::library, buffers_); }
  // Once with other values in some elements all over the input, and some of the output spoilt
  // after it, so that a run that then writes nothing, or what it wrote last, shows, and caches are
  // as a run leaves them.
  void rehearse(harness::Runner runner);
  // By a hash of the output. What is wrong, and from whom it came; or empty.
  std::optional<machine::Failure> check(harness::Runner runner);
  void judge(harness::Judge& judge);
  harness::Cost cost() const;
  void describe(harness::Description& description) const;

  // The buffers of one call; where a rank has none, an empty tensor.
  struct Buffers {
    machine::Tensor in, out;
  };
  const Buffers& buffers() const { return buffers_; }  // what run() works on, out of place
  Buffers in_place();
  // The input that question() asks about; in the output what nobody wrote shows.
  void fill(const Buffers& buffers) const;
  void run(const Buffers& buffers) { call(*communicator_, algorithm_, buffers); }
  Question question() const;
  const std::string& algorithm() const { return algorithm_; }  // the case's, or what auto picked
  const std::string& note() const { return note_; }

 private:
  std::unique_ptr<collectives::Communicator> connect() const;
  Buffers out_of_place();
  void call(collectives::Communicator& communicator, std::string_view algorithm,
            const Buffers& buffers);
  std::int64_t mark_stride(const machine::Tensor& tensor) const;
  void mark(bool marked);  // some elements of the input
  void spoil();            // some elements of the output
  void judge_numerics(harness::Judge& judge, std::string_view how, const Buffers& buffers);
  void judge_volume(harness::Judge& judge);
  void judge_rounding(harness::Judge& judge);
  collectives::Call call_of_rank() const;
  bool uses_library() const { return algorithm_ == collectives::library; }
  void judge_memory(harness::Judge& judge);

  machine::Operation operation_;
  CollectiveCase case_;
  harness::Context& context_;
  std::shared_ptr<const collectives::TrafficMatrix> traffic_;
  std::unique_ptr<collectives::Communicator> communicator_, library_;
  harness::PeakMeter memory_;
  std::int64_t count_;  // elements of the whole, or of a share; what the busiest rank moves
  Buffers buffers_;
  std::string algorithm_;
  std::string note_;
  std::uint64_t expected_hash_ = 0, fingerprint_ = 0;
  std::vector<std::byte> spoilt_;  // the first byte of what is right, inverted, every mark_stride
};

}  // namespace suite

#pragma once
// What all_reduce, all_gather and reduce_scatter have in common as units: integer patterns make the
// answer exact in any order, the volume is the algorithm's formula, replicas and repeats agree in
// every bit, and the library's collective on the same buffers is the yardstick.
//
// `bytes` is the size that nccl-tests prints: the whole buffer (of all_gather the output, of
// reduce_scatter the input). Where ranks do not divide it, each share is rounded down, to one
// element at least.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/communicator.h"
#include "collectives/cost.h"
#include "harness/unit.h"

namespace suite {

struct CollectiveCase {
  int ranks = 2;
  machine::Transport transport{};
  std::string algorithm;
  machine::Dtype dtype{};
  harness::Bytes bytes;
};

harness::Sweep<CollectiveCase> collective_sweep(machine::Operation operation,
                                                harness::Profile profile);
std::string collective_why_not(const CollectiveCase& c, const harness::Context& context);

class CollectiveUnit {
 public:
  CollectiveUnit(machine::Operation operation, const CollectiveCase& c, harness::Context& context);

  void prepare() {}  // out of place: the input stays as it is
  void run() { call(*communicator_, case_.algorithm); }
  bool has_yardstick() const { return library_ != nullptr; }
  void yardstick() { call(*library_, collectives::library); }
  void judge(harness::Judge& judge);
  harness::Cost cost() const;

 private:
  void call(collectives::Communicator& communicator, std::string_view algorithm);
  void fill();
  std::vector<double> expected() const;

  machine::Operation operation_;
  CollectiveCase case_;
  harness::Context& context_;
  std::size_t held_before_;  // of the device's buffers, which are not this unit's
  std::unique_ptr<collectives::Communicator> communicator_, library_;
  std::int64_t count_;  // elements of the whole (all_reduce) or of a share
  machine::Tensor in_, out_;
};

// A unit for one operation: the same shell with another name.
template <machine::Operation op>
struct CollectiveOf : CollectiveUnit {
  using Case = CollectiveCase;
  static constexpr harness::Oracle oracles[] = {harness::Oracle::numerics, harness::Oracle::volume,
                                                harness::Oracle::memory,
                                                harness::Oracle::determinism};
  static harness::Sweep<Case> sweep(harness::Profile profile) {
    return collective_sweep(op, profile);
  }
  static std::string why_not(const Case& the_case, const harness::Context& context) {
    return collective_why_not(the_case, context);
  }
  CollectiveOf(const Case& the_case, harness::Context& context)
      : CollectiveUnit(op, the_case, context) {}
};

}  // namespace suite

// Claim: every collective is exact on integers with every algorithm and every root, and sends the
// volume of its paper. All-gather, all-reduce and reduce-scatter give the same bits in every run,
// and on every rank that holds the same result. All-to-all with a different length for every pair
// of ranks sends each part once.
#include <algorithm>
#include <utility>

#include "suite/collectives/collective_unit.h"

namespace suite {
namespace {

// Algorithms in which no rank has a special part (a root, an inner node of a tree) and each step
// uses all links.
bool is_balanced(std::string_view algorithm) {
  constexpr std::string_view balanced[] = {
      "ring",  "bidirectional_ring",        "direct", "pairwise", "recursive_doubling",
      "bruck", "recursive_halving_doubling"};
  return std::ranges::find(balanced, algorithm) != std::end(balanced);
}

struct NamedOperation {
  Operation operation;
  std::string_view name, about;
};
constexpr NamedOperation named[] = {
    {Operation::all_gather, "all_gather", "every rank's share, on all ranks"},
    {Operation::all_reduce, "all_reduce", "the sum over all ranks, on all ranks"},
    {Operation::all_to_all, "all_to_all", "a share of every rank to every rank"},
    {Operation::all_to_all_v, "all_to_all_v", "a part of every rank to every rank, of any length"},
    {Operation::broadcast, "broadcast", "one rank's buffer, on all ranks"},
    {Operation::gather, "gather", "every rank's share, on one rank"},
    {Operation::reduce, "reduce", "the sum of all buffers, on one rank"},
    {Operation::reduce_scatter, "reduce_scatter", "the sum over all ranks, each rank its share"},
    {Operation::scatter, "scatter", "one rank's shares, one to each"},
    {Operation::send_receive, "send_receive",
     "sends to the next rank, receives from the previous rank"},
};

template <std::size_t row>
struct CollectiveOf : CollectiveUnit {
  using Case = CollectiveCase;
  static constexpr Operation operation = named[row].operation;
  static constexpr std::string_view name = named[row].name, about = named[row].about;
  static constexpr Oracle oracles[] = {Oracle::numerics, Oracle::volume, Oracle::memory,
                                       Oracle::determinism};
  static bool equal_work(const Case& c) {
    return !collectives::has_root(operation) && operation != Operation::all_to_all_v &&
           operation != Operation::send_receive && is_balanced(c.algorithm);
  }
  static bool limit_applies(const Case& c) {
    return equal_work(c) || (operation == Operation::broadcast && is_balanced(c.algorithm));
  }
  static Sweep<Case> sweep(const harness::PlanRequest& request) {
    return collective_sweep(operation, request);
  }
  static std::string why_not(const Case& c, const Context& context) {
    return collective_why_not(operation, c, context);
  }
  CollectiveOf(const Case& c, Context& context) : CollectiveUnit(operation, c, context) {}
};

template <std::size_t... rows>
bool add_all(std::index_sequence<rows...>) {
  return (harness::add<CollectiveOf<rows>>() && ...);
}
const bool registered = add_all(std::make_index_sequence<std::size(named)>());

}  // namespace
}  // namespace suite

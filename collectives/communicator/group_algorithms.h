#pragma once
// The algorithms that the calls of a group run if they name none, by operation.
//
//   Communicator tp(world, grid.group(Axis::tp), Transport::nccl);
//   tp.set_algorithms(read_algorithms("all_reduce=library,all_gather=ring", operations));
//
// All ranks of a group have the same.

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "machine/base/operation.h"

namespace collectives {

// Selects the library's own collective: MPI's over mpi, NCCL's over nccl.
inline constexpr std::string_view library = "library";
// Selects default_algorithm in a user's text.
inline constexpr std::string_view our_own = "ours";

class GroupAlgorithms {
 public:
  using Operation = machine::Operation;
  // Returns the name, which may be "library". Empty: default_algorithm.
  std::string_view of(Operation operation) const;
  void set(Operation operation, std::string_view name);  // "ours" and empty: default_algorithm
  bool operator==(const GroupAlgorithms&) const = default;

 private:
  std::map<Operation, std::string> names_;
};

// Returns the algorithms of a group whose calls overlap work on their shares: rings, in which
// shares arrive and leave one after another. The own share is the first to arrive and the last to
// leave.
GroupAlgorithms algorithms_by_share(GroupAlgorithms others = {});

// Reads the text of a group that has these operations: a name for all operations that have it
// ("ring", "library", "ours"), or OPERATION=NAME, separated by commas. The other operations keep
// `others`. Throws std::invalid_argument with the nearest operation or name.
GroupAlgorithms read_algorithms(std::string_view text,
                                std::span<const machine::Operation> operations,
                                GroupAlgorithms others = {});

// Divides a list of such texts: at commas, except between two OPERATION=NAME. Empty parts stay.
std::vector<std::string> divide_algorithm_texts(std::string_view list);

}  // namespace collectives

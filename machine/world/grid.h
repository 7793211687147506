#pragma once
// The process grid in Megatron's order tp-cp-ep-dp-pp: tensor parallelism varies fastest, so its
// ranks are neighbours; pipeline stages are farthest apart (Narayanan et al. 2021,
// arXiv:2104.04473; Megatron-LM --use-tp-pp-dp-mapping off).
//
//   Grid grid({.tp = 2, .dp = 2, .pp = 2}, rank);      // 8 ranks
//   grid.coordinates().dp; grid.group(Axis::tp).members;

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

#include "machine/world/group.h"

namespace machine {

enum class Axis : unsigned char { tp, cp, ep, dp, pp };
inline constexpr Axis all_axes[] = {Axis::tp, Axis::cp, Axis::ep, Axis::dp, Axis::pp};
constexpr std::string_view name(Axis axis) {
  constexpr std::string_view names[] = {"tp", "cp", "ep", "dp", "pp"};
  return names[static_cast<std::size_t>(axis)];
}

struct Degrees {
  int tp = 1, cp = 1, ep = 1, dp = 1, pp = 1;
  // Saturates, because the product of five valid degrees may exceed 32 bits.
  int ranks() const {
    std::int64_t product = 1;
    for (const int degree : {tp, cp, ep, dp, pp})
      product = std::min<std::int64_t>(product * degree, std::numeric_limits<int>::max());
    return static_cast<int>(product);
  }
  int operator[](Axis axis) const {
    return std::array{tp, cp, ep, dp, pp}[static_cast<std::size_t>(axis)];
  }
  bool operator==(const Degrees&) const = default;
};

class Grid {
 public:
  // Throws std::invalid_argument naming rank and ranks when rank is outside.
  Grid(Degrees degrees, int rank);
  // The grid of a group's ranks. Throws std::invalid_argument if their number is not that of the
  // grid.
  Grid(Degrees degrees, const Group& ranks);
  const Degrees& degrees() const { return degrees_; }
  int rank() const { return rank_; }  // its place in the grid
  int coordinate(Axis axis) const { return coordinates_[static_cast<std::size_t>(axis)]; }
  int size(Axis axis) const { return degrees_[axis]; }
  // Returns the place of these coordinates with the coordinate of one axis replaced.
  int rank_at(Axis axis, int coordinate) const;
  // These return groups of ranks of the world: the group's, or the places themselves.
  // Returns the ranks that differ from this one along axis only.
  Group group(Axis axis) const;
  // Returns the ranks that differ from this one along cp and dp only: they hold the same
  // parameters, add up their gradients and shard ZeRO's states. Its name is "dp".
  Group replica_group() const;
  // Returns the first and last stage at this rank's other coordinates: they share the tied
  // embedding. One member when pp is 1; index -1 on a stage between.
  Group embedding_group() const;
  // Returns this rank's stage and the stage at the same distance from the other end, in order. The
  // middle stage is the only member of its group.
  Group opposite_group() const;

 private:
  int member(int place) const {
    return members_.empty() ? place : members_[static_cast<std::size_t>(place)];
  }

  Degrees degrees_;
  int rank_;
  std::vector<int> members_;  // ranks of the world, by place; empty: the places
  std::array<int, 5> coordinates_;
};

}  // namespace machine

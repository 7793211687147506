#include "machine/world/grid.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

namespace machine {

Grid::Grid(Degrees degrees, int rank) : degrees_(degrees), rank_(rank), coordinates_{} {
  for (const Axis axis : all_axes)
    if (degrees[axis] < 1)
      throw std::invalid_argument(
          fmt::format("degree {} is {}; expected 1 or more", name(axis), degrees[axis]));
  if (rank < 0 || rank >= degrees.ranks())
    throw std::invalid_argument(fmt::format(
        "rank {} is outside a grid of tp {} x cp {} x ep {} x dp {} x pp {} = {} ranks", rank,
        degrees.tp, degrees.cp, degrees.ep, degrees.dp, degrees.pp, degrees.ranks()));
  int rest = rank;
  for (const Axis axis : all_axes) {
    coordinates_[static_cast<std::size_t>(axis)] = rest % degrees[axis];
    rest /= degrees[axis];
  }
}

Grid::Grid(Degrees degrees, const Group& ranks) : Grid(degrees, ranks.index) {
  if (ranks.size() != degrees.ranks())
    throw std::invalid_argument(fmt::format("group {} has {} ranks; expected {} for the grid",
                                            ranks.name, ranks.size(), degrees.ranks()));
  members_ = ranks.members;
}

int Grid::rank_at(Axis axis, int coordinate) const {
  int stride = 1;
  for (const Axis faster : all_axes) {
    if (faster == axis) break;
    stride *= degrees_[faster];
  }
  return rank_ + (coordinate - this->coordinate(axis)) * stride;
}

Group Grid::group(Axis axis) const {
  Group group{std::string(name(axis)), {}, coordinate(axis)};
  for (int i = 0; i < size(axis); ++i) group.members.push_back(member(rank_at(axis, i)));
  return group;
}

Group Grid::replica_group() const {
  Group group{std::string(name(Axis::dp)), {}, 0};
  for (int dp = 0; dp < size(Axis::dp); ++dp)
    for (int cp = 0; cp < size(Axis::cp); ++cp) {
      if (dp == coordinate(Axis::dp) && cp == coordinate(Axis::cp)) group.index = group.size();
      group.members.push_back(member(rank_at(Axis::dp, dp) + rank_at(Axis::cp, cp) - rank_));
    }
  return group;
}

Group Grid::embedding_group() const {
  const int last = size(Axis::pp) - 1;
  if (last == 0) return {"embedding", {member(rank_)}, 0};
  const int stage = coordinate(Axis::pp);
  return {"embedding",
          {member(rank_at(Axis::pp, 0)), member(rank_at(Axis::pp, last))},
          stage == 0      ? 0
          : stage == last ? 1
                          : -1};
}

Group Grid::opposite_group() const {
  const int stage = coordinate(Axis::pp), other = size(Axis::pp) - 1 - stage;
  if (stage == other) return {"opposite", {member(rank_)}, 0};
  return {"opposite",
          {member(rank_at(Axis::pp, std::min(stage, other))),
           member(rank_at(Axis::pp, std::max(stage, other)))},
          stage < other ? 0 : 1};
}

}  // namespace machine

#pragma once
// Recursive halving and doubling: a reduce-scatter in which peers exchange halves of the data that
// they still have to sum, then an all-gather that runs the same rounds backwards. It sends 2(N-1)/N
// of the data, like the ring, in 2 log2 N rounds (Rabenseifner 2004,
// doi:10.1007/978-3-540-24685-5_1). The first half is also the reduce_scatter (Thakur, Rabenseifner
// and Gropp 2005, doi:10.1177/1094342005051521).
//
// Ranks beyond a power of two are folded in as in recursive_doubling.h. The sum of every share is
// the same tree over the bits of places, so all chunks are summed in one order.

#include "collectives/algorithms/recursive_doubling.h"
#include "collectives/plan.h"

namespace collectives::recursive_halving_doubling {

using recursive_doubling::Fold;

inline constexpr std::string_view paper = "Rabenseifner 2004, doi:10.1007/978-3-540-24685-5_1";
inline constexpr std::string_view paper_of_halving =
    "Thakur, Rabenseifner and Gropp 2005, doi:10.1177/1094342005051521";

// The largest messages go to the nearest rank, because distances double while halves shrink.
inline Plan all_reduce(const Call& call) {
  const int rank = call.rank;
  const Fold fold(call);
  const int size = fold.size;
  Plan plan{1, size};
  if (fold.place < 0) {
    plan.steps = {send(rank + 1, input(0, size)), receive(rank + 1, output(0, size))};
    return plan;
  }
  Buffer sums = Buffer::input;
  if (call.ranks == 1) plan.add(copy(input(0), output(0)));
  if (fold.paired) {
    plan.add(receive_reduce(rank - 1, input(0, size), output(0, size)));
    sums = Buffer::output;
  }
  int first = 0, length = size;  // of the shares that this rank still sums
  for (int distance = 1; distance < size; distance *= 2) {
    length /= 2;
    const int peer = fold.rank_of(fold.place ^ distance);
    const bool upper = fold.place & distance;
    const int keep = first + (upper ? length : 0), give = first + (upper ? 0 : length);
    plan.add(send(peer, {sums, give, length}));
    plan.add(receive_reduce(peer, {sums, keep, length}, output(keep, length)));
    first = keep;
    sums = Buffer::output;
  }
  for (int distance = size / 2; distance > 0; distance /= 2) {
    const int peer = fold.rank_of(fold.place ^ distance);
    const int theirs = fold.place & distance ? first - length : first + length;
    plan.add(send(peer, output(first, length)));
    plan.add(receive(peer, output(theirs, length)));
    first = std::min(first, theirs);
    length *= 2;
  }
  if (fold.paired) plan.add(send(rank - 1, output(0, size)));
  return plan;
}

// A place of one rank needs bays for half of the shares. A pair adds its inputs first, so it needs
// bays for all shares.
inline int reduce_scatter_bays(const Call& call) {
  const Fold fold(call);
  if (fold.paired) return call.ranks;
  return fold.place < 0 || fold.size <= 2 ? 0 : fold.span(fold.block(fold.size / 2), fold.size / 2);
}
// Distances halve, so that places end with their own shares.
inline Plan reduce_scatter(const Call& call) {
  const int rank = call.rank, ranks = call.ranks;
  const Fold fold(call);
  Plan plan{1, ranks, reduce_scatter_bays(call)};
  if (fold.place < 0) {
    plan.steps = {send(rank + 1, input(0, ranks)), receive(rank + 1, output(0))};
    return plan;
  }
  const int in_first_bay = fold.paired ? 0 : fold.first(fold.block(fold.size / 2));
  const auto bays = [&](int share, int count) {
    return scratch(share - in_first_bay, share, count);
  };
  if (ranks == 1) plan.add(copy(input(0), output(0)));
  bool summed = false;
  if (fold.paired) {
    plan.add(receive_reduce(rank - 1, input(0, ranks), bays(0, ranks)));
    summed = true;
  }
  for (int distance = fold.size / 2; distance > 0; distance /= 2) {
    const int peer = fold.rank_of(fold.place ^ distance);
    const int keep = fold.block(distance), give = keep ^ distance;
    const auto sums = [&](int place) {
      const int share = fold.first(place), count = fold.span(place, distance);
      return summed ? bays(share, count) : input(share, count);
    };
    const bool last = distance == 1 && !fold.paired;
    plan.add(send(peer, sums(give)));
    plan.add(receive_reduce(peer, sums(keep),
                            last ? output(0) : bays(fold.first(keep), fold.span(keep, distance))));
    summed = true;
  }
  if (fold.paired) {
    plan.add(send(rank - 1, bays(rank - 1, 1)));
    plan.add(copy(bays(rank, 1), output(0)));
  }
  return plan;
}

// Returns the elements of the block of `length` shares that a place keeps, out of `size` shares of
// count elements. The bits of the place select the halves, starting with the lowest bit.
constexpr std::int64_t left_with(int place, int size, int length, std::int64_t count) {
  int first = 0;
  for (int half = size / 2, bit = 1; half >= length; half /= 2, bit *= 2)
    if (place & bit) first += half;
  return size_of_parts(count, size, first, length);
}
// Returns the elements in each direction. One half of the rounds exchanges all shares except the
// own one, and the other half the kept blocks. For a power of two this is 2(N-1)/N n.
constexpr std::int64_t exchanged(int place, int size, std::int64_t count) {
  if (size == 1) return 0;
  std::int64_t sum = count - left_with(place, size, 1, count);
  for (int length = 1; length < size; length *= 2) sum += left_with(place, size, length, count);
  return sum;
}
inline Volume all_reduce_volume(const Call& call, std::int64_t count) {
  const Fold fold(call);
  if (fold.place < 0) return both_ways(count, 1);
  return both_ways(exchanged(fold.place, fold.size, count) + (fold.paired ? count : 0),
                   2 * fold.rounds() + fold.paired);
}

// A place sends all shares except its own, and receives the blocks that it keeps.
inline Volume reduce_scatter_volume(const Call& call, std::int64_t count) {
  const Fold fold(call);
  if (fold.place < 0) return {call.ranks * count, 1, count, 1};
  const int own = fold.span(fold.place, 1), messages = fold.rounds() + fold.paired;
  const int kept = recursive_doubling::held_before_rounds(fold);
  return {(call.ranks - own + fold.paired) * count, messages,
          (kept + (fold.paired ? call.ranks : 0)) * count, messages};
}

static_assert(exchanged(3, 4, 1000) == 2 * 3 * 1000 / 4);  // 2(N-1)/N n

}  // namespace collectives::recursive_halving_doubling

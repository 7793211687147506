#pragma once
// Recursive doubling: in round k, ranks whose numbers differ in bit k exchange all their data.
// After log2 N rounds every rank has all data. It needs the fewest rounds and suits small messages
// (Thakur, Rabenseifner and Gropp 2005, doi:10.1177/1094342005051521).
//
// If N is not a power of two, the first ranks form pairs. The even rank of a pair sends its data to
// the odd rank before the rounds and receives the result from it after the rounds.

#include <algorithm>
#include <bit>

#include "collectives/plan.h"

namespace collectives::recursive_doubling {

inline constexpr std::string_view paper =
    "Thakur, Rabenseifner and Gropp 2005, doi:10.1177/1094342005051521";

// The mapping of ranks to places 0 … size - 1, where size is the largest power of two up to the
// number of ranks. A place represents one rank or a pair of consecutive ranks.
struct Fold {
  int size, pairs;
  int place;    // -1: rank + 1 has this rank's data
  bool paired;  // represents rank - 1 also

  constexpr Fold(int rank, int ranks)
      : size(static_cast<int>(std::bit_floor(static_cast<unsigned>(ranks)))),
        pairs(ranks - size),
        place(rank >= 2 * pairs ? rank - pairs
              : rank % 2 == 1   ? rank / 2
                                : -1),
        paired(rank < 2 * pairs && rank % 2 == 1) {}
  explicit constexpr Fold(const Call& call) : Fold(call.rank, call.ranks) {}

  constexpr int rank_of(int other) const { return other < pairs ? 2 * other + 1 : other + pairs; }
  // Return the first rank of a place, and the number of ranks of `count` places.
  constexpr int first(int other) const { return std::min(2 * other, other + pairs); }
  constexpr int span(int other, int count) const { return first(other + count) - first(other); }
  constexpr int rounds() const { return std::bit_width(static_cast<unsigned>(size)) - 1; }
  // Returns the first place of the aligned block of `distance` places that contains this place.
  constexpr int block(int distance) const { return place & ~(distance - 1); }
};

// Sums use two bays in turn, so that one can be filled while the other is read. The last sum goes
// to the output. In place it goes to a bay, because the peer may not have read the input yet. Bays
// are counted as in place, because the prediction of memory does not know how a call is made.
inline int all_reduce_bays(const Call& call) {
  const Fold fold(call);
  return fold.place < 0 ? 0 : std::min(2, fold.rounds() + fold.paired);
}
inline Plan all_reduce(const Call& call) {
  const Fold fold(call);
  Plan plan{1, 1, all_reduce_bays(call)};
  if (fold.place < 0) {
    plan.steps = {send(call.rank + 1, input(0)), receive(call.rank + 1, output(0))};
    return plan;
  }
  Slice sum = input(0);
  int bay = 0;
  const auto add = [&](int peer, bool last) {
    const Slice longer = last && !call.in_place ? output(0) : scratch(bay, 0);
    plan.add(receive_reduce(peer, sum, longer));
    sum = longer;
    bay = 1 - bay;
  };
  if (fold.paired) add(call.rank - 1, false);
  for (int distance = 1; distance < fold.size; distance *= 2) {
    const int peer = fold.rank_of(fold.place ^ distance);
    plan.add(send(peer, sum));
    add(peer, 2 * distance == fold.size);
  }
  plan.add(copy(sum, output(0)));
  if (fold.paired) plan.add(send(call.rank - 1, output(0)));
  return plan;
}

inline Plan all_gather(const Call& call) {
  const int rank = call.rank, ranks = call.ranks;
  const Fold fold(call);
  Plan plan{1, ranks};
  if (fold.place < 0) {
    plan.steps = {send(rank + 1, input(0)), receive(rank + 1, output(0, ranks))};
    return plan;
  }
  const auto held = [&](int place, int count) {
    return output(fold.first(place), fold.span(place, count));
  };
  plan.add(copy(input(0), output(rank)));
  if (fold.paired) plan.add(receive(rank - 1, output(rank - 1)));
  for (int distance = 1; distance < fold.size; distance *= 2) {
    const int peer = fold.rank_of(fold.place ^ distance), mine = fold.block(distance);
    plan.add(send(peer, held(mine, distance)));
    plan.add(receive(peer, held(mine ^ distance, distance)));
  }
  if (fold.paired) plan.add(send(rank - 1, output(0, ranks)));
  return plan;
}

// Every round sends the whole buffer: log2 N n.
inline Volume all_reduce_volume(const Call& call, std::int64_t count) {
  const Fold fold(call);
  const int messages = fold.place < 0 ? 1 : fold.rounds() + fold.paired;
  return both_ways(messages * count, messages);
}

// Returns the sum of the shares held before each round: 1 + 2 + 4 + … = N - 1 for a power of two.
constexpr int held_before_rounds(const Fold& fold) {
  int shares = 0;
  for (int distance = 1; distance < fold.size; distance *= 2)
    shares += fold.span(fold.block(distance), distance);
  return shares;
}
inline Volume all_gather_volume(const Call& call, std::int64_t count) {
  const Fold fold(call);
  if (fold.place < 0) return {count, 1, call.ranks * count, 1};
  const int messages = fold.rounds() + fold.paired;
  const int sent = held_before_rounds(fold) + (fold.paired ? call.ranks : 0);
  return {sent * count, messages, (call.ranks - 1) * count, messages};
}

static_assert(held_before_rounds(Fold(5, 8)) == 7);
static_assert(Fold(3, 6).first(1) == 2 && Fold(5, 6).first(3) == 5 && Fold(0, 6).place == -1);

}  // namespace collectives::recursive_doubling

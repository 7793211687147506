#pragma once
// Direct, one step: every rank sends all of its data to every other rank and computes the whole
// sum. It sends (N-1) n bytes instead of 2(N-1)/N n but has one latency, so it is best for the
// smallest messages (flat all-reduce by all-gather; Thakur, Rabenseifner and Gropp 2005,
// doi:10.1177/1094342005051521).
//
// Every rank sums in the order 0 + 1 + 2 …, so all ranks get the same bits. In place it sums in
// scratch, because other ranks may not have read the input yet.

#include "collectives/plan.h"

namespace collectives::direct_one_step {

inline constexpr std::string_view paper =
    "Thakur, Rabenseifner and Gropp 2005, doi:10.1177/1094342005051521";

inline int bays(const Call&) { return 1; }
inline Plan all_reduce(const Call& call) {
  const int rank = call.rank, ranks = call.ranks;
  const Slice sum = call.in_place ? scratch(0, 0) : output(0);
  Plan plan{1, 1, 1};
  for (int i = 1; i < ranks; ++i) plan.add(send((rank + i) % ranks, input(0)));
  int next = 0;
  if (rank < 2 && ranks > 1) {  // both ranks start with their sum: a + b equals b + a
    plan.add(receive_reduce(1 - rank, input(0), sum));
    next = 2;
  } else if (rank >= 2) {
    plan.add(receive(0, sum));
    next = 1;
  } else {
    plan.add(copy(input(0), sum));
    next = 1;
  }
  for (; next < ranks; ++next)
    plan.add(next == rank ? reduce(input(0), sum) : receive_reduce(next, sum, sum));
  plan.add(copy(sum, output(0)));
  return plan;
}

inline Volume volume(const Call& call, std::int64_t count) {
  return both_ways((call.ranks - 1) * count, call.ranks - 1);
}

}  // namespace collectives::direct_one_step

#pragma once
// Parameter server: workers push all of their data to one server, which sums it, and pull the
// result (Li et al. 2014, "Scaling distributed machine learning with the parameter server", OSDI).
// Rank 0 is the server and also a worker. Its link carries (N-1) n bytes each way, and the links of
// the other ranks carry n. It is the baseline for every other algorithm.
//
// The server adds in the order of ranks, so a sum's bits depend only on the values.

#include "collectives/plan.h"

namespace collectives::parameter_server {

inline constexpr std::string_view paper = "Li et al. 2014, OSDI";

inline Plan all_reduce(const Call& call) {
  Plan plan{call.pieces};
  if (call.rank > 0) {
    for (int piece = 0; piece < plan.pieces; ++piece) plan.add(send(0, input(piece)));
    for (int piece = 0; piece < plan.pieces; ++piece) plan.add(receive(0, output(piece)));
    return plan;
  }
  for (int piece = 0; piece < plan.pieces; ++piece) {
    if (call.ranks == 1) plan.add(copy(input(piece), output(piece)));
    for (int worker = 1; worker < call.ranks; ++worker)
      plan.add(receive_reduce(worker, worker == 1 ? input(piece) : output(piece), output(piece)));
    for (int worker = 1; worker < call.ranks; ++worker) plan.add(send(worker, output(piece)));
  }
  return plan;
}

inline Volume volume(const Call& call, std::int64_t count) {
  const int workers = call.rank == 0 ? call.ranks - 1 : 1;
  return both_ways(workers * count, 1LL * workers * call.pieces);
}

}  // namespace collectives::parameter_server

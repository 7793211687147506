#pragma once
// Two-dimensional mesh (torus): ranks [k * inner, (k + 1) * inner) are a row, and ranks inner apart
// a column. Rings reduce along rows, then along columns on the share that remains in the row, and
// gather in the opposite order. This sends the same number of bytes as one ring, in 2(R-1) + 2(C-1)
// steps instead of 2(RC-1), and only between neighbours (Mikami et al. 2018, "Massively distributed
// SGD", arXiv:1811.05233).

#include "collectives/algorithms/ring.h"
#include "collectives/plan.h"

namespace collectives::mesh {

using ring::around;

inline constexpr std::string_view paper = "Mikami et al. 2018, arXiv:1811.05233";

// A ring of ranks along a row or a column.
struct Line {
  int place, length, next, previous;
};
constexpr Line row_of(const Call& call) {
  const int place = call.rank % call.inner, first = call.rank - place;
  return {place, call.inner, first + around(place + 1, call.inner),
          first + around(place - 1, call.inner)};
}
constexpr Line column_of(const Call& call) {
  return {call.rank / call.inner, call.ranks / call.inner,
          around(call.rank + call.inner, call.ranks), around(call.rank - call.inner, call.ranks)};
}

// part(k) is in own(k) on every rank. It starts at rank `from` + k of the line. Its sum ends one
// rank before that rank, in sum(k).
template <class Own, class Sum>
void reduce_lap(Plan& plan, Line line, int from, Own own, Sum sum) {
  if (line.length == 1) return;
  const auto part = [&](int turn) { return around(line.place - from - turn, line.length); };
  plan.add(send(line.next, own(part(0))));
  for (int turn = 1; turn < line.length; ++turn) {
    const Slice target = sum(part(turn), turn);
    plan.add(receive_reduce(line.previous, own(part(turn)), target));
    if (turn < line.length - 1) plan.add(send(line.next, target));
  }
}
// Each rank of the line starts with part(place - from).
template <class Part>
void gather_lap(Plan& plan, Line line, int from, Part part) {
  for (int turn = 0; turn < line.length; ++turn) {
    const Slice slice = part(around(line.place - from - turn, line.length));
    if (turn > 0) plan.add(receive(line.previous, slice));
    if (turn < line.length - 1) plan.add(send(line.next, slice));
  }
}

// The laps of a row move one run of shares for each column. The laps of a column move the shares of
// one such run.
inline Plan all_reduce(const Call& call) {
  const Line row = row_of(call), column = column_of(call);
  const int rows = column.length, columns = row.length,
            first = around(row.place + 1, columns) * rows;
  Plan plan{1, call.ranks};
  if (call.ranks == 1) plan.add(copy(input(0), output(0)));
  const auto run = [&](int k) { return output(k * rows, rows); };
  const auto share = [&](int k) { return output(first + k); };
  reduce_lap(
      plan, row, 0, [&](int k) { return input(k * rows, rows); },
      [&](int k, int) { return run(k); });
  reduce_lap(
      plan, column, 0, [&](int k) { return columns > 1 ? share(k) : input(first + k); },
      [&](int k, int) { return share(k); });
  gather_lap(plan, column, -1, share);
  gather_lap(plan, row, -1, run);
  return plan;
}

inline Plan all_gather(const Call& call) {
  const Line row = row_of(call), column = column_of(call);
  const int columns = row.length;
  Plan plan{1, call.ranks};
  plan.add(copy(input(0), output(call.rank)));
  gather_lap(plan, row, 0, [&](int k) { return output(column.place * columns + k); });
  gather_lap(plan, column, 0, [&](int k) { return output(k * columns, columns); });
  return plan;
}

// Reduces along the column first, one row's shares at a time, then along the row. Sums in transit
// along the column use two sets of bays in turn. Along the row a sum replaces the share to which it
// is added.
inline int reduce_scatter_bays(const Call& call) {
  return column_of(call).length > 2 ? 2 * call.inner : call.ranks > 2 ? call.inner : 0;
}
inline Plan reduce_scatter(const Call& call) {
  const Line row = row_of(call), column = column_of(call);
  const int rows = column.length, columns = row.length, first = column.place * columns;
  Plan plan{1, call.ranks, reduce_scatter_bays(call)};
  if (call.ranks == 1) plan.add(copy(input(0), output(0)));
  const auto set = [&](int turn) { return (rows - 1 - turn) % 2 * columns; };  // 0 in the last turn
  reduce_lap(
      plan, column, 1, [&](int k) { return input(k * columns, columns); },
      [&](int k, int turn) {
        return columns > 1 || turn < rows - 1 ? scratch(set(turn), k * columns, columns)
                                              : output(0);
      });
  reduce_lap(
      plan, row, 1, [&](int k) { return rows > 1 ? scratch(k, first + k) : input(first + k); },
      [&](int k, int turn) { return turn < columns - 1 ? scratch(k, first + k) : output(0); });
  return plan;
}

// Returns the size of two laps without the part that ends here and the part that ends at the next
// rank, as in ring.h.
template <class Size>
std::int64_t two_laps(int place, int length, std::int64_t all, Size size) {
  if (length == 1) return 0;
  return 2 * all - size(around(place + 1, length)) - size(around(place + 2, length));
}
inline Volume all_reduce_volume(const Call& call, std::int64_t count) {
  const Line row = row_of(call), column = column_of(call);
  const int rows = column.length, columns = row.length;
  const auto shares = [&](int first, int number) {
    return size_of_parts(count, call.ranks, first, number);
  };
  const auto along_row = [&](int place) {
    return two_laps(place, columns, count, [&](int k) { return shares(k * rows, rows); });
  };
  const int run = around(row.place + 1, columns) * rows;
  const auto along_column = [&](int place) {
    return two_laps(place, rows, shares(run, rows), [&](int k) { return shares(run + k, 1); });
  };
  const std::int64_t messages = 2LL * (columns - 1) + 2LL * (rows - 1);
  return {along_row(row.place) + along_column(column.place), messages,
          along_row(row.place - 1) + along_column(column.place - 1), messages};
}
inline Volume shares_volume(const Call& call, std::int64_t count) {
  return both_ways((call.ranks - 1) * count, call.inner - 1 + call.ranks / call.inner - 1);
}

}  // namespace collectives::mesh

#pragma once
// The positions of a rank's own rows: with context parallelism a rank has a part of every sequence,
// and with sequence parallelism a part of these rows.
//
//   for (const RowRun& run : own_runs(context, sequence, x.rows()))
//     …x.row_range(run.row, run.count) has the positions run.position, run.position + run.step, …

#include <algorithm>
#include <cstdint>
#include <vector>

#include "layers/context.h"

namespace layers {

// Rows [row, row + count) of a rank, in one sequence of a micro-batch.
struct RowRun {
  std::int64_t row = 0, count = 0, sequence = 0, position = 0, step = 1;
};

// sequence: positions of a whole sequence. rows: the own rows.
inline std::vector<RowRun> own_runs(const Context& context, std::int64_t sequence,
                                    std::int64_t rows) {
  const std::int64_t length = context.cp.rows(sequence), first = context.first_row(rows);
  const std::vector<Segment> segments = context.cp.segments(sequence);
  std::vector<RowRun> runs;
  for (std::int64_t row = 0; row < rows;) {
    const std::int64_t local = (first + row) % length;
    const Segment& segment =
        *std::find_if(segments.begin(), segments.end(),
                      [&](const Segment& one) { return local < one.local + one.count; });
    const std::int64_t past = local - segment.local;
    const std::int64_t count = std::min(segment.count - past, rows - row);
    runs.push_back({row, count, (first + row) / length, segment.global + past * segment.stride,
                    segment.stride});
    row += count;
  }
  return runs;
}

}  // namespace layers

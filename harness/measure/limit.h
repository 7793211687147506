#pragma once
// The time that a case would take if only what was measured of this machine held it back: a lower
// bound, from the best rates, so a time below it says that a rate was measured wrongly.
//
// The arithmetic, the memory and the wire are bounds of their own, and the largest is the limit (as
// in the roofline model: Williams, Waterman, Patterson 2009, doi:10.1145/1498765.1498785); but:
//   - Over shared_memory the core that copies is the link. W received bytes, of M that are read or
//     written, cost what a copy of local memory costs and what a copy from a peer's memory takes
//     beyond that: M/C + W (1/L - 2/C), C counting bytes read and written, L each byte once. L is
//     of bytes that nobody has written since they were received last, as the inputs of timed runs
//     are. What a peer wrote just before comes slower (Rates has that, too), but no rank must fetch
//     it: who makes a result may write it into the others' memory.
//   - Over mpi another engine may move the bytes meanwhile: the larger of M/C and W/L.
// 0: not known.

#include "harness/measure/rates.h"
#include "harness/unit/unit.h"

namespace harness {

double limit_s(const Cost& cost, const Rates& rates, int ranks);

}  // namespace harness

#pragma once
// The lower bound of a case's time by the best measured rates of this machine.
//
// Arithmetic, memory and wire each give a bound, and the largest is the limit (as in the roofline
// model: Williams, Waterman, Patterson 2009, doi:10.1145/1498765.1498785), except:
//   - Over shared_memory the copying core is the link. W received bytes among M bytes read or
//     written cost a copy of local memory plus the extra time of a copy from a peer's memory:
//     M/C + W (1/L - 2/C). C counts bytes read and written, L each byte once. L is the rate for
//     bytes that are unchanged since they were received last, like the inputs of timed runs. Bytes
//     that a peer has just written are slower (Rates has both), but no rank must fetch them: the
//     producer may write its result into the others' memory.
//   - A case that writes only what it has read is compared with updates in place, not with copies.
//   - Over the other transports another engine may move the bytes concurrently: the larger of M/C
//     and W/L.
//
// A time below the limit shows that a rate was measured too low, because it was disturbed or the
// clocks had not risen. Then the limit is stale: the case runner measures its rate again and says
// so.

#include <cstdint>

#include "harness/measure/rates.h"

namespace harness {

struct Cost;  // unit.h

// The limit, with what selects the rate that determines it.
struct Limit {
  double seconds = 0;  // 0: unknown
  RateKey rate;
};

Limit limit_of(const Cost& cost, const Rates& rates, int ranks);

// Returns whether a case that took `seconds` shows that the limit is too high. 0 s: not timed.
bool is_stale(const Limit& limit, double seconds);

}  // namespace harness

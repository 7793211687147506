#pragma once
// Where a collective's output is wrong: how many elements, from where to where, in which bits, and
// from whom the first of them came.

#include <string>

#include "collectives/plan.h"
#include "machine/device/tensor.h"

namespace suite {

// The rank whose message, or -1 where it is this rank's own copy or sum, is the last to write
// element `index` of the call's output; summed: the message was added to what this rank had.
// call.pieces as the plan is to cut.
struct Writer {
  int rank = -1;
  bool summed = false;
};
Writer last_writer(const collectives::Algorithm& algorithm, const collectives::Call& call,
                   std::int64_t count, std::int64_t index);

struct WrongElements {
  std::int64_t count = 0, first = 0, last = 0;
  std::string text;  // "5 of 2048 elements wrong, from 17 to 21; the first is 0x4040 (3), not …"
};
// Both of one dtype and size, compared by bits.
WrongElements wrong_elements(const machine::Tensor& actual, const machine::Tensor& wanted);

}  // namespace suite

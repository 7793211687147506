#pragma once
// The oracle of one update of 8-bit AdamW (machine/device/dynamic_codes/adamw_8bit.h), from its own
// inputs: codes, scales, master and gradient before it.
//
//   moments   S q of the codes before, with two roundings of float: of q and of the product
//   master    optimizer_reference.h from these moments, with its error bound
//   scales    the largest |m| and |v| of each block of 256, within the largest bound of the block
//   codes     the number nearest to m / S, by suite/zero/dynamic_tree.h. Of an interval that
//             has m / S with its error, and three roundings (of the quotient and of the middle
//             between two numbers), the code must be between those of both ends: one code but near
//             a middle

#include <cstdint>
#include <string>
#include <vector>

#include "harness/judge/judge.h"
#include "zero/optimizers/optimizer.h"

namespace suite {

// The states of one range. scales: of m, then of v.
struct EightBitStates {
  std::vector<double> master, first_codes, second_codes, scales;
};
EightBitStates eight_bit_states(const zero::RangeStates& states);
// Returns the first elements; whole blocks.
EightBitStates first_elements(const EightBitStates& states, std::size_t elements);

// Returns S q of a range's codes: of v with `second`.
std::vector<double> decoded_moment(const EightBitStates& states, bool second);

struct EightBitUpdate {
  zero::AdamW8Bit rule;
  int step = 1;  // number of the update
  double gradient_scale = 1;
  std::vector<double> gradient;      // exact in its dtype
  std::vector<std::uint8_t> decays;  // a byte for each element
};
void judge_eight_bit_update(harness::Judge& judge, const std::string& what,
                            const EightBitUpdate& update, const EightBitStates& before,
                            const EightBitStates& after);

}  // namespace suite

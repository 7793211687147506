#pragma once
// The examples on which encoders train, by rules that depend only on (seed, index of the sequence,
// position). An encoder-decoder's encoder reads a sequence of prefix_length tokens, then padding;
// the decoder predicts the tokens after a whole sequence (Raffel et al. 2020, arXiv:1910.10683,
// section 3.2.3: prefix language modeling, in two stacks).
//
// An encoder's examples are masked sequences (Devlin et al. 2019, arXiv:1810.04805, section 3.1):
//
//   length   prefix_length, then padding: token 0, no target
//   types    0 in the first segment, 1 in the second, 0 in the padding
//   masked   position 0 and 15 % of the others: 80 % of them become the mask token, 10 % a random
//            token, 10 % keep their token; their target is the token, others have no target
//
// Position 0 has a target, so every sequence counts. The mask is the last token of the vocabulary.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "machine/device/random.h"

namespace suite {

// A sequence's tokens, which are replaced; its targets and types, which are written.
struct MaskedTokens {
  std::span<std::int32_t> tokens, targets, types;
};
// Returns a number below `count`, which is positive, for `drawn` in [0, 1).
inline std::size_t number_below(double drawn, std::size_t count) {
  return std::min(static_cast<std::size_t>(drawn * static_cast<double>(count)), count - 1);
}

// Returns the length of a sequence without padding: more than half of it, up to all of it.
inline int prefix_length(std::uint64_t seed, std::uint64_t index, std::size_t size) {
  const double drawn = machine::uniform(machine::random_key(seed, "masked.length"), index);
  return static_cast<int>(size - number_below(drawn, (size + 1) / 2));
}

// Returns the length. vocabulary: without the padding of the table.
inline int mask_tokens(std::uint64_t seed, std::uint64_t index, int vocabulary,
                       const MaskedTokens& of) {
  const std::size_t size = of.tokens.size();
  const auto draw = [&](std::string_view what, std::uint64_t number) {
    return machine::uniform(machine::random_key(seed, what), number);
  };
  const auto length = static_cast<std::size_t>(prefix_length(seed, index, size));
  const std::size_t second = length - number_below(draw("masked.segment", index), length);
  for (std::size_t i = 0; i < size; ++i) {
    const std::uint64_t at = index * size + i;
    std::int32_t& token = of.tokens[i];
    of.types[i] = i >= second && i < length ? 1 : 0;
    of.targets[i] = -1;
    if (i >= length) token = 0;
    if (i >= length || (i > 0 && draw("masked.position", at) >= 0.15)) continue;
    of.targets[i] = token;
    const double way = draw("masked.token", at);
    if (way < 0.8)
      token = vocabulary - 1;
    else if (way < 0.9)
      token = static_cast<std::int32_t>(
          number_below(draw("masked.random", at), static_cast<std::size_t>(vocabulary)));
  }
  return static_cast<int>(length);
}

}  // namespace suite

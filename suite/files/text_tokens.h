#pragma once
// A text file as a pair of Megatron-LM's token files (indexed_tokens.h): bytes as tokens of type
// uint8, one document for each paragraph. Blank lines end a paragraph and belong to it, so the
// documents one after another are the text again, byte for byte.

#include <cstdint>
#include <string>

namespace suite {

struct TokenCounts {
  std::uint64_t documents = 0, tokens = 0;
};
// Writes PREFIX.bin and PREFIX.idx. Throws FileError.
TokenCounts write_text_tokens(const std::string& text, const std::string& prefix);

}  // namespace suite

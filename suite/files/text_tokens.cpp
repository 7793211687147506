#include "suite/files/text_tokens.h"

#include <string_view>
#include <vector>

#include "suite/files/indexed_tokens.h"

namespace suite {
namespace {

// Returns the size of the first paragraph, including the blank lines after it.
std::size_t paragraph(std::string_view text) {
  bool words = false, blank_after = false;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t newline = text.find('\n', begin);
    const std::size_t end = newline == std::string_view::npos ? text.size() : newline + 1;
    const bool blank =
        text.substr(begin, end - begin).find_first_not_of(" \t\r\n") == std::string_view::npos;
    if (!blank && blank_after) return begin;
    words |= !blank;
    blank_after = blank && words;
    begin = end;
  }
  return text.size();
}

}  // namespace

TokenCounts write_text_tokens(const std::string& text, const std::string& prefix) {
  const MappedFile file(text);
  std::string_view rest = file.text();
  IndexedTokensWriter writer(prefix, TokenType::uint8);
  TokenCounts counts;
  std::vector<std::int64_t> tokens;
  for (; !rest.empty(); rest.remove_prefix(tokens.size())) {
    tokens.clear();
    for (const char letter : rest.substr(0, paragraph(rest)))
      tokens.push_back(static_cast<unsigned char>(letter));
    writer.add_document(tokens);
    ++counts.documents;
    counts.tokens += tokens.size();
  }
  writer.finish();
  return counts;
}

}  // namespace suite

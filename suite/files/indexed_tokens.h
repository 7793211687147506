#pragma once
// Tokens in Megatron-LM's pair of files (core/datasets/indexed_dataset.py): PREFIX.bin holds the
// tokens of all sequences, PREFIX.idx their places. Numbers are little-endian, sizes are in tokens,
// pointers in bytes of PREFIX.bin:
//
//   "MMIDIDX\0\0"  uint64 version = 1  uint8 dtype  uint64 sequences  uint64 documents + 1
//   int32 size [sequences]  int64 pointer [sequences]  int64 document [documents + 1]
//
// Document d is the sequences from document[d] up to document[d + 1], so the first entry is 0 and
// the last one `sequences`. Pairs with a mode for each sequence (multimodal ones) are
// rejected.
//
//   IndexedTokens tokens("corpus");                     // corpus.bin and corpus.idx, mapped
//   tokens.read(begin, 65, buffer);                     // of all sequences, one after another
//
//   IndexedTokensWriter writer("corpus", TokenType::uint16);
//   writer.add_document(tokens_of_it);                  // one sequence
//   writer.finish();

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "suite/files/mapped_file.h"
#include "suite/files/new_file.h"

namespace suite {

// The format's codes. Its codes 6 and 7 are floating-point types, which are not tokens.
enum class TokenType : std::uint8_t { uint8 = 1, int8, int16, int32, int64, uint16 = 8 };
std::string_view name(TokenType type);
std::size_t size_of(TokenType type);

class IndexedTokens {
 public:
  // Reads the whole index. Throws FileError with file, field, value and expected value. Rejects
  // another magic, version or dtype, and counts that do not match the file size. Rejects negative
  // sizes, and pointers that are negative, misaligned or outside PREFIX.bin. Rejects documents that
  // do not start at 0, decrease, or do not end at the last sequence. Rejects sequences that share
  // or omit bytes of PREFIX.bin, and files without tokens.
  explicit IndexedTokens(const std::string& prefix);

  const std::string& prefix() const { return prefix_; }
  TokenType type() const { return type_; }
  std::uint64_t sequences() const { return begins_.size() - 1; }
  std::uint64_t documents() const { return documents_; }
  std::uint64_t tokens() const { return begins_.back(); }
  // Returns the first token of the sequence, which ends at begin(sequence + 1).
  std::uint64_t begin(std::uint64_t sequence) const { return begins_[sequence]; }
  std::uint64_t document(
      std::uint64_t index) const;  // its first sequence; document(documents()): the end

  // Reads tokens [begin, begin + count). Throws std::out_of_range beyond the last token.
  void read(std::uint64_t begin, std::uint64_t count, std::int64_t* to) const;

 private:
  std::string prefix_;
  MappedFile index_, data_;
  TokenType type_ = TokenType::uint8;
  std::uint64_t documents_ = 0, documents_at_ = 0, pointers_at_ = 0;
  std::vector<std::uint64_t> begins_;  // first token of each sequence, then the end
};

// Writes the pair of files. Both appear in finish. An older pair stays until then.
class IndexedTokensWriter {
 public:
  IndexedTokensWriter(const std::string& prefix, TokenType type);
  // Throws FileError for a token that does not fit the type and for more than 2^31 - 1 tokens.
  void add_document(std::span<const std::int64_t> tokens);
  void finish();

 private:
  std::string prefix_;
  TokenType type_;
  NewFile data_, index_;
  std::vector<std::int32_t> sizes_;
};

struct TokenCounts {
  std::uint64_t documents = 0, tokens = 0;
};
// Writes the bytes of a text file as PREFIX.bin and PREFIX.idx: tokens of type uint8, one document
// per paragraph. Blank lines end a paragraph and belong to it, so the concatenated documents are
// the text, byte for byte. Throws FileError.
TokenCounts write_text_tokens(const std::string& text, const std::string& prefix);

}  // namespace suite

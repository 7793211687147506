#pragma once
// Tokens to train on: the bytes of a text file, a pair of Megatron-LM's token files
// (indexed_tokens.h), a blend of such pairs in Megatron-Core's order of samples
// (blended_tokens.h), or text generated from a seed, which needs no file.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "suite/files/blended_tokens.h"
#include "suite/files/indexed_tokens.h"

namespace suite {

class Corpus {
 public:
  static constexpr int vocabulary = 256;  // of text

  // Opens a text file, or a pair by its common prefix. Throws FileError with the file if it cannot
  // be read, violates its format, or is shorter than one sequence and its targets. A blend
  // ("--data-path 0.3 a 0.7 b") has at least `samples` samples (0: one epoch), in an order that
  // depends on the seed; then it starts again.
  static Corpus from_file(const std::string& path, int sequence, int vocabulary,
                          std::uint64_t seed = 0, std::int64_t samples = 0);
  // Throws the errors of from_file, by default for the shortest sequence.
  static void check(const std::string& path, int sequence = 0);
  // Returns sentences of a small grammar. Their structure lets a loss fall. A smaller vocabulary
  // takes their bytes modulo its size.
  static Corpus generated(std::uint64_t seed, int vocabulary = Corpus::vocabulary);

  // Writes `sequence` tokens, and as targets the tokens one position later. They depend only on
  // (seed, index), not on the rank or the micro-batch. Throws FileError for a drawn token outside
  // the vocabulary; other tokens are not checked.
  void draw(std::uint64_t seed, std::uint64_t index, int sequence, std::int32_t* tokens,
            std::int32_t* targets) const;

  std::uint64_t size() const {  // tokens
    return blend_ ? blend_->tokens() : pair_ ? pair_->tokens() : text_.size();
  }
  const std::string& source() const { return source_; }  // the file; empty: generated

 private:
  explicit Corpus(std::string text) : text_(std::move(text)) {}
  std::string source_, text_;
  std::shared_ptr<const BlendedTokens> blend_;
  std::shared_ptr<const IndexedTokens> pair_;  // both null: text_ has the tokens
  int vocabulary_ = vocabulary;
};

}  // namespace suite

#pragma once
// Tokens to train on: the bytes of a text file, a pair of Megatron-LM's token files
// (indexed_tokens.h), or text generated from a seed, which needs no file.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "suite/files/indexed_tokens.h"

namespace suite {

class Corpus {
 public:
  static constexpr int vocabulary = 256;  // of text

  // A text file, or the prefix that the names of a pair begin with. Throws FileError naming the
  // file when it can't be read, is not as its format says, or is shorter than one sequence and
  // its targets.
  static Corpus from_file(const std::string& path, int sequence, int vocabulary);
  // Throws what from_file would; by default for the shortest sequence.
  static void check(const std::string& path, int sequence = 0);
  // Sentences of a small grammar: enough structure for a loss to fall.
  static Corpus generated(std::uint64_t seed);

  // Sequence `index` of all that are ever drawn, `sequence` tokens, and its targets, one further
  // on. A pure function of (seed, index): which rank or micro-batch asks makes no difference.
  // Throws FileError for a token outside the vocabulary: only what is drawn is looked at.
  void draw(std::uint64_t seed, std::uint64_t index, int sequence, std::int32_t* tokens,
            std::int32_t* targets) const;

  std::uint64_t size() const { return pair_ ? pair_->tokens() : text_.size(); }  // tokens
  const std::string& source() const { return source_; }  // the file; empty: generated

 private:
  explicit Corpus(std::string text) : text_(std::move(text)) {}
  std::string source_, text_;
  std::shared_ptr<const IndexedTokens> pair_;  // in place of the text
  int vocabulary_ = vocabulary;
};

}  // namespace suite

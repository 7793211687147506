#pragma once
// Text to train on, bytes as tokens: a file, or one generated from a seed that needs no file.

#include <cstdint>
#include <string>
#include <vector>

namespace suite {

class Corpus {
 public:
  static constexpr int vocabulary = 256;

  // Throws machine::MachineError naming the file when it can't be read, std::invalid_argument when
  // it is shorter than one sequence and its targets.
  static Corpus from_file(const std::string& path, int sequence);
  // Sentences of a small grammar: enough structure for a loss to fall.
  static Corpus generated(std::uint64_t seed);

  // Sequence `index` of all that are ever drawn, `sequence` tokens, and its targets, one further
  // on. A pure function of (seed, index): which rank or micro-batch asks makes no difference.
  void draw(std::uint64_t seed, std::uint64_t index, int sequence, std::int32_t* tokens,
            std::int32_t* targets) const;

  std::size_t size() const { return text_.size(); }

 private:
  explicit Corpus(std::string text) : text_(std::move(text)) {}
  std::string text_;
};

}  // namespace suite

#include "suite/files/corpus.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <stdexcept>
#include <string_view>

#include "machine/device/random.h"

namespace suite {

namespace {

bool is_there(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

bool names_pair(const std::string& path) {
  return !is_there(path) && (is_there(path + ".idx") || is_there(path + ".bin"));
}

}  // namespace

void Corpus::check(const std::string& path, int sequence) {
  if (is_data_path(path)) {
    BlendedTokens(parse_data_path(path), Split::training, std::max(sequence, 1), 0, 0);
    return;
  }
  const std::filesystem::path given(path);
  const std::string prefix = (given.parent_path() / given.stem()).string();
  if ((given.extension() == ".idx" || given.extension() == ".bin") && is_there(prefix + ".idx") &&
      is_there(prefix + ".bin"))
    throw FileError("data file {} is one file of a pair; give the prefix {}", path, prefix);
  const std::uint64_t tokens =
      names_pair(path) ? IndexedTokens(path).tokens() : MappedFile(path).size();
  if (tokens < static_cast<std::uint64_t>(sequence) + 1)
    throw FileError("data file {} has {} tokens; one sequence and its targets need {}", path,
                    tokens, sequence + 1);
}

Corpus Corpus::from_file(const std::string& path, int sequence, int vocabulary, std::uint64_t seed,
                         std::int64_t samples) {
  if (!is_data_path(path)) check(path, sequence);
  Corpus corpus("");
  corpus.source_ = path;
  corpus.vocabulary_ = vocabulary;
  if (is_data_path(path))
    corpus.blend_ =
        std::make_shared<const BlendedTokens>(parse_data_path(path), Split::training, sequence,
                                              samples, static_cast<std::uint32_t>(seed));
  else if (names_pair(path))
    corpus.pair_ = std::make_shared<const IndexedTokens>(path);
  else
    corpus.text_ = MappedFile(path).text();
  return corpus;
}

Corpus Corpus::generated(std::uint64_t seed, int vocabulary) {
  constexpr std::array<std::string_view, 6> subjects{"the rank ",    "a ring ",    "the host ",
                                                     "every shard ", "one stage ", "the link "};
  constexpr std::array<std::string_view, 6> verbs{"sends ",     "reduces ", "gathers ",
                                                  "waits for ", "copies ",  "overlaps "};
  constexpr std::array<std::string_view, 6> objects{"its gradient",   "the next chunk",
                                                    "a bucket",       "two micro-batches",
                                                    "all parameters", "the bubble"};
  constexpr std::array<std::string_view, 4> ends{". ", ", and then ", "; ", ".\n"};
  std::string text;
  for (std::uint64_t sentence = 0; text.size() < 64 * 1024; ++sentence) {
    const auto words = machine::philox(seed, sentence);
    text += subjects[words[0] % subjects.size()];
    text += verbs[words[1] % verbs.size()];
    text += objects[words[2] % objects.size()];
    text += ends[words[3] % ends.size()];
  }
  for (char& letter : text)
    letter = static_cast<char>(static_cast<unsigned char>(letter) % vocabulary);
  return Corpus(std::move(text));
}

void Corpus::draw(std::uint64_t seed, std::uint64_t index, int sequence, std::int32_t* tokens,
                  std::int32_t* targets) const {
  const std::uint64_t length = static_cast<std::uint64_t>(sequence) + 1;
  std::vector<std::int64_t> drawn(length);
  const std::uint64_t start = blend_ ? index % static_cast<std::uint64_t>(blend_->size())
                                     : machine::philox(seed, index)[0] % (size() - length + 1);
  if (blend_)
    blend_->read(static_cast<std::int64_t>(start), drawn.data());
  else if (pair_)
    pair_->read(start, length, drawn.data());
  else
    for (std::uint64_t i = 0; i < length; ++i)
      drawn[i] = static_cast<unsigned char>(text_[start + i]);
  for (std::uint64_t i = 0; i < length; ++i)
    if (drawn[i] < 0 || drawn[i] >= vocabulary_)
      throw FileError(
          "data file {}: token {} is {}; the model's vocabulary has {}",
          blend_ ? blend_->prefix(static_cast<std::int64_t>(start)) : source_,
          blend_ ? fmt::format("{} of sample {}", i, start) : fmt::format("{}", start + i),
          drawn[i], vocabulary_);
  for (std::uint64_t i = 0; i + 1 < length; ++i) {
    tokens[i] = static_cast<std::int32_t>(drawn[i]);
    targets[i] = static_cast<std::int32_t>(drawn[i + 1]);
  }
}

}  // namespace suite

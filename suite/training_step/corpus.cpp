#include "suite/training_step/corpus.h"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string_view>

#include "machine/device/error.h"
#include "machine/device/random.h"

namespace suite {

Corpus Corpus::from_file(const std::string& path, int sequence) {
  std::ifstream file(path, std::ios::binary);
  if (!file)
    throw machine::MachineError(
        fmt::format("cannot read data file {}: {}", path, std::strerror(errno)));
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (text.size() < static_cast<std::size_t>(sequence) + 1)
    throw std::invalid_argument(
        fmt::format("data file {} has {} bytes; one sequence and its targets need {}", path,
                    text.size(), sequence + 1));
  return Corpus(std::move(text));
}

Corpus Corpus::generated(std::uint64_t seed) {
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
  return Corpus(std::move(text));
}

void Corpus::draw(std::uint64_t seed, std::uint64_t index, int sequence, std::int32_t* tokens,
                  std::int32_t* targets) const {
  const std::uint64_t starts = text_.size() - static_cast<std::size_t>(sequence);
  const std::uint64_t start = machine::philox(seed, index)[0] % starts;
  for (int i = 0; i < sequence; ++i) {
    tokens[i] = static_cast<unsigned char>(text_[start + static_cast<std::size_t>(i)]);
    targets[i] = static_cast<unsigned char>(text_[start + static_cast<std::size_t>(i) + 1]);
  }
}

}  // namespace suite

#include "suite/files/blended_tokens.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "suite/options/options.h"

namespace suite {
namespace {

constexpr std::string_view path_word = "--data-path", split_word = "--split";

std::vector<std::string> words_of_path(const std::string& text) {
  std::vector<std::string> words;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(' ', begin), text.size());
    if (end > begin) words.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

}  // namespace

bool is_data_path(const std::string& text) {
  return text.starts_with(path_word) &&
         (text.size() == path_word.size() || text[path_word.size()] == ' ');
}

DataPath parse_data_path(const std::string& text) {
  const std::vector<std::string> words = words_of_path(text);
  DataPath path;
  std::vector<std::string> data;
  for (std::size_t i = 1; i < words.size(); ++i) {
    if (words[i] != split_word) {
      data.push_back(words[i]);
    } else if (++i < words.size()) {
      path.split = words[i];
    } else {
      throw FileError("--split has no value; expected one to three numbers (example: 949,50,1)");
    }
  }
  if (data.empty()) throw FileError("--data-path has no prefix of token files");
  if (data.size() == 1) {
    path.sets.push_back({1, data[0]});
  } else {
    if (data.size() % 2 != 0)
      throw FileError("--data-path has {} words; expected WEIGHT PREFIX pairs", data.size());
    for (std::size_t i = 0; i < data.size(); i += 2) {
      const double weight = number_of<double>(data[i]).value_or(0);
      if (!(weight > 0) || weight > 1e9)
        throw FileError("--data-path: the weight of {} is {}; expected a number above 0",
                        in_quotes(data[i + 1]), in_quotes(data[i]));
      path.sets.push_back({weight, data[i + 1]});
    }
  }
  try {
    split_range(path.split, 0, 1);
  } catch (const std::invalid_argument& error) {
    throw FileError("--{}", error.what());
  }
  return path;
}

BlendedTokens::BlendedTokens(const DataPath& path, Split split, int length, std::int64_t samples,
                             std::uint32_t seed)
    : length_(length) {
  std::vector<double> weights;
  double sum = 0;
  for (const DataPath::Set& set : path.sets) sum += set.weight;
  for (const DataPath::Set& set : path.sets) {
    auto tokens = std::make_unique<const IndexedTokens>(set.prefix);
    std::vector<std::int32_t> sizes;
    for (std::uint64_t i = 0; i < tokens->sequences(); ++i)
      sizes.push_back(static_cast<std::int32_t>(tokens->begin(i + 1) - tokens->begin(i)));
    const auto [first, end] =
        split_range(path.split, static_cast<int>(split), static_cast<std::int64_t>(sizes.size()));
    std::vector<std::int32_t> documents(static_cast<std::size_t>(end - first));
    std::iota(documents.begin(), documents.end(), static_cast<std::int32_t>(first));
    const std::int64_t needed = samples == 0            ? 0
                                : path.sets.size() == 1 ? samples
                                                        : samples_of_set(set.weight / sum, samples);
    try {
      sets_.push_back({std::move(tokens), sample_order(sizes, documents, length, needed, seed)});
    } catch (const std::invalid_argument& error) {
      throw FileError("{}: split {}: {}", set.prefix, path.split, error.what());
    }
    weights.push_back(set.weight);
  }
  std::int64_t size = samples;
  if (size == 0 || sets_.size() == 1) {
    size = 0;
    for (const Set& set : sets_) size += set.order.size();
  }
  positions_ = blend(weights, size);
}

std::uint64_t BlendedTokens::tokens() const {
  std::uint64_t all = 0;
  for (const Set& set : sets_) all += set.tokens->tokens();
  return all;
}

const std::string& BlendedTokens::prefix(std::int64_t position) const {
  const Blended& at = positions_[static_cast<std::size_t>(position)];
  return sets_[static_cast<std::size_t>(at.set)].tokens->prefix();
}

void BlendedTokens::read(std::int64_t position, std::int64_t* to) const {
  const Blended& at = positions_[static_cast<std::size_t>(position)];
  const Set& set = sets_[static_cast<std::size_t>(at.set)];
  // In one epoch of every file, a file of a large weight is read again.
  const auto sample = static_cast<std::size_t>(
      set.order.shuffled[static_cast<std::size_t>(at.position % set.order.size())]);
  SampleOrder::Start start = set.order.samples[sample];
  for (std::int64_t left = length_ + 1; left > 0;) {
    const auto document =
        static_cast<std::uint64_t>(set.order.documents[static_cast<std::size_t>(start.place)]);
    const std::uint64_t begin =
        set.tokens->begin(document) + static_cast<std::uint64_t>(start.offset);
    const std::int64_t here =
        std::min(left, static_cast<std::int64_t>(set.tokens->begin(document + 1) - begin));
    if (here > 0) set.tokens->read(begin, static_cast<std::uint64_t>(here), to);
    to += here;
    left -= here;
    start = {start.place + 1, 0};
  }
}

}  // namespace suite

#include "suite/files/indexed_tokens.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <limits>
#include <stdexcept>

namespace suite {
namespace {

constexpr std::string_view magic("MMIDIDX\0\0", 9);
constexpr std::uint64_t version_at = 9, type_at = 17, sequences_at = 18, documents_at = 26;
constexpr std::uint64_t header = 34;

struct Named {
  std::uint8_t code;
  std::string_view name;
  std::size_t size;  // 0: not a token type
};
constexpr std::array types{Named{1, "uint8", 1},   Named{2, "int8", 1},  Named{3, "int16", 2},
                           Named{4, "int32", 4},   Named{5, "int64", 8}, Named{6, "float64", 0},
                           Named{7, "float32", 0}, Named{8, "uint16", 2}};

const Named& named(TokenType type) { return types[static_cast<std::size_t>(type) - 1]; }

// Calls visitor(T{}) with the C++ type of these tokens.
template <class Visitor>
void visit_tokens(TokenType type, const Visitor& visitor) {
  switch (type) {
    case TokenType::uint8:
      return visitor(std::uint8_t{});
    case TokenType::int8:
      return visitor(std::int8_t{});
    case TokenType::int16:
      return visitor(std::int16_t{});
    case TokenType::int32:
      return visitor(std::int32_t{});
    case TokenType::int64:
      return visitor(std::int64_t{});
    case TokenType::uint16:
      return visitor(std::uint16_t{});
  }
}

TokenType checked_type(const std::string& path, std::uint8_t code) {
  if (code < 1 || code > types.size())
    throw FileError(
        "{}: dtype code is {}; expected 1 to 5 or 8 (uint8, int8, int16, int32, int64, uint16)",
        path, code);
  if (types[code - 1u].size == 0)
    throw FileError(
        "{}: dtype code is {} ({}); tokens are whole numbers (codes 1 to "
        "5 and 8)",
        path, code, types[code - 1u].name);
  return static_cast<TokenType>(code);
}

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

std::string_view name(TokenType type) { return named(type).name; }
std::size_t size_of(TokenType type) { return named(type).size; }

IndexedTokens::IndexedTokens(const std::string& prefix)
    : prefix_(prefix), index_(prefix + ".idx"), data_(prefix + ".bin") {
  const std::string& path = index_.path();
  if (index_.size() < header)
    throw FileError("{} has {} bytes; expected at least {}, the size of its header", path,
                    index_.size(), header);
  if (std::memcmp(index_.bytes(0, magic.size()).data(), magic.data(), magic.size()) != 0)
    throw FileError("{} does not begin with MMIDIDX and two zeros, so it is not an index of tokens",
                    path);
  if (const auto version = index_.at<std::uint64_t>(version_at); version != 1)
    throw FileError("{}: version is {}; expected 1", path, version);
  type_ = checked_type(path, index_.at<std::uint8_t>(type_at));

  // Check counts against the file size before computing with them.
  const auto sequences = index_.at<std::uint64_t>(sequences_at);
  const auto entries = index_.at<std::uint64_t>(documents_at);
  constexpr std::uint64_t bytes_of_sequence = sizeof(std::int32_t) + sizeof(std::int64_t);
  const std::uint64_t room = index_.size() - header;
  if (sequences > room / bytes_of_sequence)
    throw FileError("{}: sequences is {}; expected, in its {} bytes, at most {}", path, sequences,
                    index_.size(), room / bytes_of_sequence);
  const std::uint64_t left = room - sequences * bytes_of_sequence;
  if (entries < 1 || entries > left / sizeof(std::int64_t))
    throw FileError("{}: documents + 1 is {}; expected at least 1 and, in its {} bytes, at most {}",
                    path, entries, index_.size(), left / sizeof(std::int64_t));
  const std::uint64_t extra = left - entries * sizeof(std::int64_t);
  if (extra > 0)
    throw FileError("{} has {} bytes; {} sequences and {} documents need {}{}", path, index_.size(),
                    sequences, entries - 1, index_.size() - extra,
                    extra == sequences ? " (pairs with modes are not supported)" : "");
  pointers_at_ = header + sequences * sizeof(std::int32_t);
  documents_at_ = header + sequences * bytes_of_sequence;
  documents_ = entries - 1;

  const std::uint64_t width = size_of(type_);
  begins_.reserve(sequences + 1);
  begins_.push_back(0);
  for (std::uint64_t i = 0; i < sequences; ++i) {
    const auto size = index_.at<std::int32_t>(header + i * sizeof(std::int32_t));
    const auto pointer = index_.at<std::int64_t>(pointers_at_ + i * sizeof(std::int64_t));
    if (size < 0)
      throw FileError("{}: size of sequence {} is {}; expected 0 or more", path, i, size);
    if (pointer < 0 || static_cast<std::uint64_t>(pointer) % width != 0)
      throw FileError(
          "{}: pointer of sequence {} is {}; expected a multiple of {}, "
          "the size of {}, not below 0",
          path, i, pointer, width, name(type_));
    const auto from = static_cast<std::uint64_t>(pointer);
    const std::uint64_t bytes = static_cast<std::uint64_t>(size) * width;
    if (from > data_.size() || bytes > data_.size() - from)
      throw FileError("{}: sequence {} is at bytes {} to {}, but {} has {}", path, i, from,
                      from + bytes, data_.path(), data_.size());
    begins_.push_back(begins_.back() + static_cast<std::uint64_t>(size));
    if (begins_.back() > data_.size() / width)  // before a sum of them could overflow
      throw FileError("{}: sequences 0 to {} have {} tokens, but {} holds {}", path, i,
                      begins_.back(), data_.path(), data_.size() / width);
  }
  if (begins_.back() == 0) throw FileError("{}: its {} sequences hold no tokens", path, sequences);
  if (tokens() * width != data_.size())
    throw FileError("{} has {} bytes, but the {} tokens that {} counts have {}", data_.path(),
                    data_.size(), tokens(), path, tokens() * width);

  std::uint64_t before = 0;
  for (std::uint64_t i = 0; i < entries; ++i) {
    const auto at = index_.at<std::int64_t>(documents_at_ + i * sizeof(std::int64_t));
    const std::uint64_t least = before, most = i == 0 ? 0 : sequences;
    if (at < 0 || static_cast<std::uint64_t>(at) < least || static_cast<std::uint64_t>(at) > most)
      throw FileError("{}: document index {} is {}; expected {}", path, i, at,
                      i == 0 ? "0" : fmt::format("{} to {}", least, most));
    before = static_cast<std::uint64_t>(at);
  }
  if (before != sequences)
    throw FileError(
        "{}: the last document index is {}; expected {}, the number of "
        "sequences",
        path, before, sequences);
}

std::uint64_t IndexedTokens::document(std::uint64_t index) const {
  if (index > documents_) throw std::out_of_range(fmt::format("document {}", index));
  return static_cast<std::uint64_t>(
      index_.at<std::int64_t>(documents_at_ + index * sizeof(std::int64_t)));
}

void IndexedTokens::read(std::uint64_t begin, std::uint64_t count, std::int64_t* to) const {
  if (begin > tokens() || count > tokens() - begin)
    throw std::out_of_range(fmt::format("tokens {} to {} of {}, which has {}", begin, begin + count,
                                        prefix_, tokens()));
  auto sequence = static_cast<std::uint64_t>(
      std::upper_bound(begins_.begin(), begins_.end(), begin) - begins_.begin() - 1);
  for (; count > 0; ++sequence) {
    const std::uint64_t part = std::min(count, begins_[sequence + 1] - begin);
    const auto pointer = index_.at<std::int64_t>(pointers_at_ + sequence * sizeof(std::int64_t));
    visit_tokens(type_, [&](auto zero) {
      using T = decltype(zero);
      const std::uint64_t from =
          static_cast<std::uint64_t>(pointer) + (begin - begins_[sequence]) * sizeof(T);
      for (std::uint64_t i = 0; i < part; ++i)
        // NOLINTNEXTLINE(bugprone-signed-char-misuse): int8 is a number here
        to[i] = static_cast<std::int64_t>(data_.at<T>(from + i * sizeof(T)));
    });
    to += part;
    begin += part;
    count -= part;
  }
}

IndexedTokensWriter::IndexedTokensWriter(const std::string& prefix, TokenType type)
    : prefix_(prefix), type_(type), data_(prefix + ".bin"), index_(prefix + ".idx") {}

void IndexedTokensWriter::add_document(std::span<const std::int64_t> tokens) {
  constexpr std::size_t most = std::numeric_limits<std::int32_t>::max();
  if (tokens.size() > most)
    throw FileError("{}.bin: document {} has {} tokens; a sequence holds at most {}", prefix_,
                    sizes_.size(), tokens.size(), most);
  visit_tokens(type_, [&](auto zero) {
    using T = decltype(zero);
    for (const std::int64_t token : tokens) {
      const T stored = static_cast<T>(token);
      if (static_cast<std::int64_t>(stored) != token)
        throw FileError("{}.bin: token {} does not fit into {}", prefix_, token, name(type_));
      data_.write(&stored, sizeof stored);
    }
  });
  sizes_.push_back(static_cast<std::int32_t>(tokens.size()));
}

void IndexedTokensWriter::finish() {
  const auto put = [this](const auto& value) { index_.write(&value, sizeof value); };
  index_.write(magic.data(), magic.size());
  put(std::uint64_t{1});
  put(static_cast<std::uint8_t>(type_));
  put(std::uint64_t{sizes_.size()});
  put(std::uint64_t{sizes_.size() + 1});
  for (const std::int32_t size : sizes_) put(size);
  std::int64_t pointer = 0;
  for (const std::int32_t size : sizes_) {
    put(pointer);
    pointer += size * static_cast<std::int64_t>(size_of(type_));
  }
  for (std::int64_t i = 0; i <= static_cast<std::int64_t>(sizes_.size()); ++i) put(i);
  data_.sync();
  index_.sync();
  // Between the two renames no index exists. An old index would not match the new tokens.
  ::unlink((prefix_ + ".idx").c_str());
  data_.commit();
  index_.commit();
}

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

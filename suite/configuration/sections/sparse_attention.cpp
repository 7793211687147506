#include "suite/configuration/sections/sparse_attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <span>
#include <string_view>

#include "machine/base/error.h"
#include "machine/base/names.h"
#include "suite/files/mapped_file.h"

namespace suite::configuration {
namespace {

constexpr std::string_view section = "sparse_attention.";
constexpr std::string_view modes[] = {"dense",   "fixed",        "variable",
                                      "bigbird", "bslongformer", "local_sliding_window"};

// A key of the block. list: numbers, of which the unit has only the default.
struct BlockKey {
  enum class Kind : unsigned char { count, truth, attention, list };
  std::string_view name;
  Kind kind;
  std::string_view modes;  // separated by spaces; empty: all
  std::string_view usual;  // DeepSpeed's default
  std::string_view why{};  // only the default is valid, for this reason
};
constexpr std::string_view windows_of_one_size = "windows have one size here, num_local_blocks",
                           one_global_block = "the first block is the only global one here";
using enum BlockKey::Kind;
constexpr BlockKey block_keys[] = {
    {"block", count, "", "16"},
    {"different_layout_per_head", truth, "fixed variable bigbird bslongformer", "false"},
    {"attention", attention, "fixed variable bigbird bslongformer local_sliding_window",
     "bidirectional"},
    {"horizontal_global_attention", truth, "fixed variable", "false"},
    {"num_local_blocks", count, "fixed", "4"},
    {"num_global_blocks", count, "fixed bigbird", "1"},
    {"num_random_blocks", count, "variable bigbird", "0"},
    {"num_sliding_window_blocks", count, "bigbird bslongformer local_sliding_window", "3"},
    {"num_different_global_patterns", count, "fixed", "1", "heads have one pattern here"},
    {"local_window_blocks", list, "variable", "4"},
    {"global_block_indices", list, "variable bslongformer", "0", one_global_block},
    {"global_block_end_indices", list, "variable bslongformer", "", one_global_block},
};

bool has(std::string_view words, std::string_view mode) {
  const std::size_t at = words.find(mode);
  return words.empty() || (at != std::string_view::npos && (at == 0 || words[at - 1] == ' '));
}

class Block {
 public:
  Block(const std::string& file, const std::vector<Leaf>& leaves) : file_(file) {
    for (const Leaf& leaf : leaves)
      if (leaf.path.starts_with(section)) leaves_.push_back(&leaf);
  }

  std::string flags() {
    mode_ = "fixed";
    for (const Leaf* leaf : leaves_)
      if (key_of(*leaf) == "mode") mode_ = choice(*leaf, modes);
    for (const Leaf* leaf : leaves_) check(*leaf);
    std::string text = fmt::format("--pattern {}", mode_);
    for (const BlockKey& key : block_keys)
      if (has(key.modes, mode_)) add(key, text);
    return text;
  }

 private:
  [[noreturn]] void refuse(const Leaf& leaf, std::string_view rule) const {
    throw machine::UsageError(fmt::format("{}: {} is {}; expected {}", file_, printable(leaf.path),
                                          leaf.described(), rule));
  }
  static std::string_view key_of(const Leaf& leaf) {
    return std::string_view(leaf.path).substr(section.size());
  }
  std::string choice(const Leaf& leaf, std::span<const std::string_view> all) const {
    const std::string* const text = std::get_if<std::string>(&leaf.value);
    const std::string rule = fmt::format("{}", fmt::join(all, ", "));
    if (leaf.kind != Leaf::Kind::value || !text || std::ranges::find(all, *text) == all.end())
      refuse(leaf, rule);
    return *text;
  }

  void check(const Leaf& leaf) const {
    const std::string_view name = key_of(leaf);
    if (name == "mode") return;
    std::vector<std::string> known{"mode"};
    for (const BlockKey& key : block_keys)
      if (has(key.modes, mode_)) known.emplace_back(key.name);
    if (std::ranges::find(known, name) == known.end())
      throw machine::UsageError(fmt::format(
          "{}: {}", file_,
          machine::unknown(fmt::format("key of sparse_attention in mode {}", mode_), name, known)));
  }

  const Leaf* leaf_of(std::string_view name) const {
    const auto found =
        std::ranges::find_if(leaves_, [&](const Leaf* leaf) { return key_of(*leaf) == name; });
    return found == leaves_.end() ? nullptr : *found;
  }

  // The text of a key's value, as the default's.
  std::string value_of(const BlockKey& key, const Leaf& leaf) const {
    constexpr std::string_view ways[] = {"unidirectional", "bidirectional"};
    const auto* const number = std::get_if<double>(&leaf.value);
    const auto* const numbers = std::get_if<std::vector<double>>(&leaf.value);
    const auto* const on = std::get_if<bool>(&leaf.value);
    const bool plain = leaf.kind == Leaf::Kind::value;
    switch (key.kind) {
      case attention:
        return choice(leaf, ways);
      case truth:
        if (!plain || !on) refuse(leaf, "true or false");
        return *on ? "true" : "false";
      case count:
        if (!plain || !number || *number < 0 || *number > 1e6 || *number != std::floor(*number))
          refuse(leaf, "a whole number");
        return fmt::format("{}", static_cast<int>(*number));
      case list:
        if (plain && std::holds_alternative<std::monostate>(leaf.value)) return "";
        if (!plain || !numbers) refuse(leaf, "a list of numbers");
        return fmt::format("{}", fmt::join(*numbers, ","));
    }
    return {};
  }

  void add(const BlockKey& key, std::string& text) const {
    const Leaf* const leaf = leaf_of(key.name);
    // DeepSpeed draws a block in each row of bigbird.
    const bool draws = key.name == "num_random_blocks" && mode_ == "bigbird";
    const std::string usual(draws ? "1" : key.usual);
    const std::string value = leaf ? value_of(key, *leaf) : usual;
    if (!key.why.empty()) {
      if (value != usual)
        refuse(*leaf, fmt::format("{}: {}", usual.empty() ? "null" : usual, key.why));
      return;
    }
    if (key.name == "local_window_blocks") {
      if (value.empty() || value.find(',') != std::string::npos)
        refuse(*leaf, fmt::format("one size: {}", windows_of_one_size));
      text += fmt::format(" --num_local_blocks {}", value);
    } else if (key.name == "block" && value != "16" && value != "32" && value != "64" &&
               value != "128") {
      refuse(*leaf, "16, 32, 64 or 128");
    } else if (key.kind != truth || value == "true") {
      text += fmt::format(" --{} {}", key.name, key.kind == truth ? "on" : value);
    }
  }

  const std::string& file_;
  std::vector<const Leaf*> leaves_;
  std::string mode_;
};

}  // namespace

std::string sparse_attention_flags(const std::string& file, const std::vector<Leaf>& leaves) {
  return Block(file, leaves).flags();
}

}  // namespace suite::configuration

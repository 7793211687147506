#include "suite/predict/toml_leaves.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <sstream>

#include "suite/files/mapped_file.h"

namespace suite {
namespace {

Leaf leaf_of(const toml::node& node) {
  Leaf leaf;
  leaf.line = node.source().begin.line;
  if (const auto* const word = node.as_string()) {
    leaf.value = word->get();
  } else if (const auto* const on = node.as_boolean()) {
    leaf.value = on->get();
  } else if (const auto* const whole = node.as_integer()) {
    leaf.value = static_cast<double>(whole->get());
    leaf.written = fmt::format("{}", whole->get());
  } else if (const auto* const real = node.as_floating_point()) {
    leaf.value = real->get();
    leaf.written = fmt::format("{}", real->get());
  } else if (node.is_table()) {
    leaf.kind = Leaf::Kind::object;
  } else if (node.is_array()) {
    leaf.kind = Leaf::Kind::list;
  } else {  // a date or a time of day
    std::ostringstream date;
    node.visit([&](const auto& value) { date << value; });
    leaf.value = std::move(date).str();
  }
  return leaf;
}

void add_leaves(const toml::table& table, const std::string& above, std::vector<Leaf>& leaves) {
  for (const auto& [key, node] : table) {
    Leaf leaf = leaf_of(node);
    leaf.path = above + std::string(key.str());
    leaves.push_back(leaf);
    if (const auto* const section = node.as_table()) add_leaves(*section, leaf.path + ".", leaves);
  }
}

}  // namespace

std::vector<Leaf> toml_leaves(const std::string& file, std::string_view toml) {
  std::vector<Leaf> leaves;
  try {
    add_leaves(toml::parse(toml, file), "", leaves);
  } catch (const toml::parse_error& error) {
    throw FileError("{}:{}:{}: not valid TOML: {}", file, error.source().begin.line,
                    error.source().begin.column, error.description());
  }
  std::ranges::stable_sort(leaves, {}, &Leaf::line);  // a table has its keys sorted by name
  return leaves;
}

std::string toml_text(const std::string& text) {
  std::ostringstream quoted;
  quoted << toml::value<std::string>(text);
  return std::move(quoted).str();
}

}  // namespace suite

#pragma once
// Names that a user typed, and the nearest known name.

#include <initializer_list>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace machine {

// Returns the candidate nearest to a misspelt word (edit distance), or empty if no candidate is
// near.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);
// Returns "unknown X 'word'; did you mean 'near'?" or, if no candidate is near, "…; known: a, b,
// c". Lists only the first of many candidates.
std::string unknown(std::string_view kind, std::string_view word,
                    const std::vector<std::string>& candidates);

// Returns the value of `all` whose name() is `text`. Throws std::invalid_argument with the text of
// unknown().
template <class T>
T named(std::string_view kind, std::string_view text, std::initializer_list<T> all) {
  std::vector<std::string> names;
  for (const T value : all) {
    if (name(value) == text) return value;
    names.emplace_back(name(value));
  }
  throw std::invalid_argument(unknown(kind, text, names));
}

}  // namespace machine

#pragma once
// Names that a user typed: what was probably meant.

#include <string>
#include <string_view>
#include <vector>

namespace machine {

// The candidate nearest to a misspelt word (edit distance), or empty if none is near.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);
// "unknown X 'word'; did you mean 'near'?" or, with none near, "…; known: a, b, c".
std::string unknown(std::string_view kind, std::string_view word,
                    const std::vector<std::string>& candidates);

}  // namespace machine

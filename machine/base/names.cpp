#include "machine/base/names.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>

namespace machine {
namespace {

constexpr std::size_t most_shown = 60;  // all units fit

// Insertions, deletions, replacements of a letter and swaps of neighbours (optimal string
// alignment).
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> table(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j <= b.size(); ++j) {
      std::size_t& best = table[i][j];
      if (i == 0 || j == 0) {
        best = i + j;
        continue;
      }
      const std::size_t replaced = table[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      best = std::min({table[i - 1][j] + 1, table[i][j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        best = std::min(best, table[i - 2][j - 2] + 1);
    }
  }
  return table[a.size()][b.size()];
}

}  // namespace

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  // A near word differs in at most a third of its letters, or in one letter.
  std::size_t best = std::max<std::size_t>(1, word.size() / 3) + 1;
  std::string result;
  for (const std::string& candidate : candidates) {
    // The difference of the lengths is a lower bound. Words in a file can be very long.
    const std::size_t more = std::max(word.size(), candidate.size());
    if (more - std::min(word.size(), candidate.size()) >= best) continue;
    const std::size_t distance = edit_distance(word, candidate);
    if (distance < best) {
      best = distance;
      result = candidate;
    }
  }
  if (!result.empty() || word.size() < 3) return result;
  for (const std::string& candidate : candidates)
    if (candidate.find(word) != std::string::npos) return candidate;
  return result;
}

std::string unknown(std::string_view kind, std::string_view word,
                    const std::vector<std::string>& candidates) {
  if (const std::string near = nearest(word, candidates); !near.empty())
    return fmt::format("unknown {} '{}'; did you mean '{}'?", kind, word, near);
  const std::size_t shown = std::min(candidates.size(), most_shown),
                    more = candidates.size() - shown;
  return fmt::format("unknown {} '{}'; known: {}{}", kind, word,
                     fmt::join(std::span(candidates).first(shown), ", "),
                     more > 0 ? fmt::format(", and {} more", more) : "");
}

}  // namespace machine

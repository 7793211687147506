#include "suite/claims/claims.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace suite {
namespace {

constexpr std::array<std::string_view, 4> names{"holds", "holds if", "fails", "open"};

std::string number_text(const Claim::Number& number) {
  const bool large = number.unit.empty() && number.value >= 1e6;
  return fmt::format("{:.{}g}{}{}", number.value, large ? 6 : 4, number.unit.empty() ? "" : " ",
                     number.unit);
}

// Breaks a text at blanks before column 100, and indents the lines after the first.
std::string wrapped(const std::string& text, std::size_t indent) {
  std::string out;
  std::size_t column = indent;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    if (column > indent && column + 1 + end - at > 99) {
      out += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (column > indent) {
      out += ' ';
      ++column;
    }
    out += text.substr(at, end - at);
    column += end - at;
    at = end + 1;
  }
  return out;
}

}  // namespace

std::string_view name(ClaimVerdict verdict) { return names[static_cast<std::size_t>(verdict)]; }

std::vector<ClaimDocument> all_claims() {
  return {{"Megatron-DeepSpeed guide", guide_claims()},
          {"ZeRO article", zero_claims()},
          {"model parallelism guide", model_parallelism_claims()},
          {"communication note", communication_note_claims()},
          {"parallel communication article", parallel_communication_claims()}};
}

std::string text(const std::vector<ClaimDocument>& documents, bool only_memory) {
  std::string out;
  std::array<int, names.size()> counts{};
  for (const ClaimDocument& document : documents) {
    std::string of_document;
    for (const Claim& claim : document.claims) {
      if (only_memory && !claim.about_memory) continue;
      ++counts[static_cast<std::size_t>(claim.verdict)];
      of_document += fmt::format("{:>3} {:<8} {}\n", claim.number, name(claim.verdict),
                                 wrapped(claim.statement, 13));
      for (const Claim::Number& number : claim.numbers)
        of_document += fmt::format("{:13}{:<62} {:>16}\n", "", number.what, number_text(number));
      if (!claim.conclusion.empty())
        of_document += fmt::format("{:13}-> {}\n", "", wrapped(claim.conclusion, 16));
    }
    if (!of_document.empty()) out += fmt::format("{}\n\n{}\n", document.name, of_document);
  }
  for (std::size_t i = 0; i < counts.size(); ++i)
    out += fmt::format("{}{} {}", i == 0 ? "" : ", ", counts[i], names[i]);
  return out + "\n";
}

}  // namespace suite

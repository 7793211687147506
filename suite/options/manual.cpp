// The section of a command in the manual.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "suite/options/options.h"

namespace suite {

std::string roff(std::string_view text) {
  std::string safe;
  for (const char c : text) {
    const bool line_begins = safe.empty() || safe.back() == '\n';
    if (line_begins && (c == '.' || c == '\'')) safe += "\\&";
    if (c == '\\')
      safe += "\\e";
    else if (c == '-')
      safe += "\\-";
    else
      safe += c;
  }
  return safe;
}

std::string Options::manual() const {
  std::string text = fmt::format(".SS shardmark {}\n", roff(usage()));
  text += fmt::format("{}\n", roff(about_));
  for (const std::string& group : groups()) {
    text += fmt::format(".PP\n{}:\n", roff(group));
    for (const Option& option : options_)
      if (option.group == group)
        text += fmt::format(
            ".TP\n\\fB{}\\fR{}\n{}\n", roff(fmt::format("{}", fmt::join(option.names, ", "))),
            option.value.empty() ? "" : fmt::format(" \\fI{}\\fR", roff(option.value)),
            roff(option.about));
  }
  // The footers have their own columns.
  if (footer_) text += fmt::format(".PP\n.nf\n{}\n.fi\n", roff(footer_()));
  return text;
}

}  // namespace suite

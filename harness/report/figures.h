#pragma once
// The figures of a run: drawn by scripts/figures.py into RUN/figures, read back to go into a page.

#include <string>
#include <string_view>
#include <vector>

namespace harness {

struct Figure {
  std::string name, title, caption;
  std::string svg;  // one <svg> element, its ids unique to this figure
  std::vector<std::vector<std::string>>
      rows;  // what it was drawn from; the first row names the columns
};

struct Figures {
  std::vector<Figure> figures;
  std::string missing;  // why there are none or fewer, one line; empty: nothing is missing
};

// draw: runs figures.py first ($SHARDMARK_FIGURES, or beside the program as built or installed).
Figures figures_of(const std::string& directory, bool draw);

// An <svg> element for a page that holds others: without prolog and fixed size, every id prefixed.
// Empty when the text is no such element or holds a script.
std::string inlined_svg(std::string_view file, std::string_view id_prefix, std::string_view label);

std::vector<std::vector<std::string>> parse_csv(std::string_view text);

}  // namespace harness

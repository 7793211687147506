#pragma once
// The figures of a run, drawn by scripts/figures.py into RUN/figures and read back for a page.

#include <string>
#include <string_view>
#include <vector>

namespace harness {

struct Figure {
  std::string name, title, caption;
  std::string svg;                             // one <svg> element, its ids unique to this figure
  std::vector<std::vector<std::string>> rows;  // its data; the first row names the columns
};

struct Figures {
  std::vector<Figure> figures;
  std::string missing;  // why figures are missing, in one line, or empty
};

// draw: runs figures.py first ($SHARDMARK_FIGURES, or the script of this build or installation).
Figures figures_of(const std::string& directory, bool draw);

// An <svg> element for a page with several: without prolog and fixed size, every id prefixed. Empty
// if the text is not such an element or contains a script.
std::string inlined_svg(std::string_view file, std::string_view id_prefix, std::string_view label);

std::vector<std::vector<std::string>> parse_csv(std::string_view text);

}  // namespace harness

#pragma once
// The figures of a run, drawn by scripts/figures.py into RUN/figures.

#include <string>
#include <vector>

namespace harness {

// One entry of RUN/figures/figures.json; NAME.svg and NAME.csv are next to it.
struct Figure {
  std::string name, kind, about, group, title, caption;
  double width = 0, height = 0;  // points; 0: unknown
};

struct Figures {
  std::vector<Figure> figures;
  std::string missing;  // why figures are missing, in one line, or empty
};

// draw: runs figures.py first ($SHARDMARK_FIGURES, or the script of this build or installation).
// Leaves out figures whose file is missing.
Figures figures_of(const std::string& directory, bool draw);

}  // namespace harness

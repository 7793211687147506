#pragma once
// Checks of a recipe before it runs: the memory of its published size, and whether its shrunk form
// can run here.

#include <string>

#include "suite/plan/plan_report.h"
#include "suite/recipes/recipe.h"

namespace suite::recipes {

struct Checked {
  configuration::Plan plan;  // of the published size
  double parameters = 0;     // of the plan
  std::string why_not;       // reason why the shrunk form does not run; empty: it runs
};

// A folder of temporary files, which its destructor removes.
class ScratchFolder {
 public:
  ScratchFolder();  // throws machine::MachineError
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  ~ScratchFolder();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Throws harness::UsageError if the published size has no plan.
Checked check(const Recipe& recipe);

// Returns the bytes of one GPU by the paper's formulas, for the configuration's own stage.
double planned_bytes(const configuration::Plan& plan);

}  // namespace suite::recipes

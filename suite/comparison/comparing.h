#pragma once
// The comparison options and exit codes that `compare` and `ab` share.

#include <optional>
#include <string>
#include <vector>

#include "harness/compare/compare.h"
#include "suite/options/options.h"

namespace suite::comparison {

struct Comparing {
  harness::CompareOptions options;
  std::vector<std::string> fail_on;  // further conditions that end with 1
  bool all = false;                  // list every case, not only the first

  void add_options(Options& to);
  // Returns the exit code. Prints the differences and the remedy if the runs are not comparable.
  int end(const harness::RunComparison& comparison) const;
};

}  // namespace suite::comparison

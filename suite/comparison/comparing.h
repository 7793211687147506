#pragma once
// What `compare` and `ab` have in common: by what two sides are compared, and what that ends with.

#include <optional>
#include <string>
#include <vector>

#include "harness/compare/compare.h"
#include "suite/options/options.h"

namespace suite::comparison {

struct Comparing {
  harness::CompareOptions options;
  std::vector<std::string> fail_on;  // what ends with 1, in addition to what always does
  bool all = false;                  // list every case, however many

  void add_options(Options& to);
  int exit_code(const harness::RunComparison& comparison) const;
};

// One line: what differs, and what to do.
std::string refusal(const harness::RunComparison& comparison);

}  // namespace suite::comparison

#pragma once
// `shardmark scale --axis dp|tp|pp --strong|--weak UNIT…`: the cases of a run in which one degree
// grows with the ranks. One launch of the largest number of ranks runs all cases.
//
//   Scaling scaling = scaling_of("dp", strong, weak);
//   scaling.choose(units, profile, flags);            // ranks, degrees, batches as axis flags
//   std::erase_if(cases, [&](const auto& c) { return !scaling.has(c); });
//
// The number of ranks doubles from the product of the other degrees (--tp, --pp, --dp; default 1)
// to the number of cores, unless --ranks lists it. Strong: the same global batch in all cases.
// Weak: a batch that grows with the ranks, starting from the given batch or the unit's own.

#include <map>
#include <string>
#include <vector>

#include "harness/unit/unit.h"

namespace suite {

struct Scaling {
  std::string axis;  // the full name of the degree
  bool weak = false;
  std::vector<int> ranks = {};
  int others = 1;  // the product of the other degrees
  int batch = 0;   // sequences per step with the fewest ranks

  // Throws harness::UsageError for a unit without these axes, a flag for the axis that grows, and a
  // list instead of one number.
  void choose(const std::vector<std::string>& units, harness::Profile profile,
              harness::AxisFlags& flags);
  bool has(const harness::PlannedCase& plan) const;
};

// Reads the options --axis, --strong and --weak. Throws harness::UsageError naming a missing or
// unknown option.
Scaling scaling_of(const std::string& degree, bool strong, bool weak);

// Returns the degrees by their short names: "tp" -> "tensor-model-parallel-size".
const std::map<std::string, std::string>& degrees();
// Returns "tp" for "tensor-model-parallel-size", and the name of any other axis unchanged.
std::string short_name(const std::string& axis);

}  // namespace suite

#pragma once
// The order of cases under a time limit: fair to the units, with the most informative cases of each
// unit first.
//
//   Turns turns(cases, selected);
//   while (auto index = turns.next()) { …; turns.took(*index, seconds); }
//
// The next unit is the one with least time so far (ties: in their order). Its next case is the one
// whose pairs of axis values were run least: the largest sum over pairs of 1 / (1 + runs of that
// pair) (ties: the first). So the first cases cover every value of every axis, then pairs of
// values. A pure function of the cases and of those that were run.

#include <cstddef>
#include <optional>
#include <vector>

#include "harness/unit/unit.h"

namespace harness {

class Turns {
 public:
  // Indices into cases.
  Turns(const std::vector<PlannedCase>& cases, const std::vector<std::size_t>& selected);

  // Returns the next case, or no value if all were run.
  std::optional<std::size_t> next() const;
  // Records that a case was run; 0 seconds: in an earlier launch.
  void took(std::size_t index, double seconds);

 private:
  struct Case {
    std::size_t index = 0;
    std::vector<std::size_t> values;  // its axis values, numbered
  };
  struct Unit {
    std::vector<Case> left;
    std::size_t numbers = 0;        // of different values
    std::vector<std::size_t> runs;  // of each pair of values
    double seconds = 0;

    void pairs(const Case& one, const auto& visit) const;
  };
  std::vector<Unit> units_;
};

}  // namespace harness

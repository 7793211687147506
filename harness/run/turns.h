#pragma once
// In which order cases are run when the time may not be enough for all: fair to the units, and of
// each unit the cases that tell most first.
//
//   Turns turns(cases, selected);
//   while (auto index = turns.next()) { …; turns.took(*index, seconds); }
//
// The next unit is the one that has had least time so far (at first: in their order). Its next case
// is the one whose pairs of axis values were run least: the sum over pairs of 1 / (1 + runs of that
// pair), the first where several have the same. So the first cases show every value of every axis,
// then the values two by two, as far as the time goes. A pure function of the cases and of which
// were run.

#include <cstddef>
#include <optional>
#include <vector>

#include "harness/unit/unit.h"

namespace harness {

class Turns {
 public:
  // Indices into cases.
  Turns(const std::vector<PlannedCase>& cases, const std::vector<std::size_t>& selected);

  // Empty when all were run.
  std::optional<std::size_t> next() const;
  // What was run, here or (0 seconds) before.
  void took(std::size_t index, double seconds);

 private:
  struct Unit {
    std::vector<std::size_t> cases;                // indices
    std::vector<std::vector<std::size_t>> values;  // of each case: its axis values, numbered
    std::vector<bool> was_run;
    std::size_t numbers = 0;        // of values there are
    std::vector<std::size_t> runs;  // of each pair of values
    double seconds = 0;
    std::size_t left = 0;

    std::size_t next() const;  // place in cases
    template <class Visit>
    void pairs(std::size_t place, Visit visit) const;
  };
  std::vector<Unit> units_;
};

}  // namespace harness

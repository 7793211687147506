#pragma once
// A plan as a table and as JSON.

#include <string>
#include <vector>

#include "suite/configuration/resolve.h"
#include "suite/plan/memory_plan.h"

namespace suite::configuration {

struct PlanRow {
  Holding holding;
  Held held;
  Largest largest;
  bool fits = false, asked_for = false;
};
struct Plan {
  Resolved resolved;
  Machine machine;
  std::vector<PlanRow> rows;
};
Plan make_plan(const Resolved& resolved, const Machine& machine);

// Returns the result: whether the configuration fits, its limit, and a table of the bytes by every
// formula.
std::string text(const Plan& plan);
// Lists every key with its source, the formulas, and the bytes of each row by category.
std::string explanation(const Plan& plan);
std::string json(const Plan& plan);

}  // namespace suite::configuration

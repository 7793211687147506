#include "harness/record/description.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "harness/record/counters.h"

namespace harness {

void Description::set(std::string_view counter, double value) {
  const Counter* row = find_counter(counter);
  if (!row)
    throw std::logic_error(
        fmt::format("counter '{}' is not declared; add a row to the unit's counters", counter));
  if (std::ranges::find(harness_counters(), row->name, &Counter::name) != harness_counters().end())
    throw std::logic_error(fmt::format("counter '{}' is the harness's own", counter));
  counters_[std::string(counter)] = value;
}

}  // namespace harness

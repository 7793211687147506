#include "harness/record/record.h"

#include <cmath>

namespace harness {

std::string_view name(Ruling ruling) {
  constexpr std::string_view names[] = {"pass", "fail", "skipped"};
  return names[static_cast<std::size_t>(ruling)];
}

std::string_view name(Oracle oracle) {
  constexpr std::string_view names[] = {"numerics", "volume", "memory", "schedule", "determinism"};
  return names[static_cast<std::size_t>(oracle)];
}

std::string_view name(Reference reference) {
  return reference == Reference::shared ? "shared" : "independent";
}

std::string axis(const Record& record, std::string_view name) {
  for (const auto& [axis, value] : record.axes)
    if (axis == name) return value;
  return {};
}

double counter(const Record& record, const std::string& key, double otherwise) {
  const auto found = record.counters.find(key);
  const bool there = found != record.counters.end() && std::isfinite(found->second);
  return there ? found->second : otherwise;
}

}  // namespace harness

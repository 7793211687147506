#include "harness/run/turns.h"

#include <algorithm>
#include <map>

namespace harness {

// Includes a value with itself, because a unit may have only one axis.
void Turns::Unit::pairs(const Case& one, const auto& visit) const {
  for (std::size_t a = 0; a < one.values.size(); ++a)
    for (std::size_t b = 0; b <= a; ++b) visit(one.values[a] * numbers + one.values[b]);
}

Turns::Turns(const std::vector<PlannedCase>& cases, const std::vector<std::size_t>& selected) {
  std::map<std::string, std::size_t> places;
  std::vector<std::map<std::pair<std::string, std::string>, std::size_t>> numbers;
  for (const std::size_t index : selected) {
    const PlannedCase& plan = cases[index];
    const auto [place, fresh] = places.try_emplace(plan.unit, units_.size());
    if (fresh) {
      units_.emplace_back();
      numbers.emplace_back();
    }
    Case& one = units_[place->second].left.emplace_back(Case{index, {}});
    auto& known = numbers[place->second];
    for (const auto& axis : plan.axes)
      one.values.push_back(known.try_emplace(axis, known.size()).first->second);
  }
  for (std::size_t i = 0; i < units_.size(); ++i) {
    units_[i].numbers = numbers[i].size();
    units_[i].runs.resize(numbers[i].size() * numbers[i].size());
  }
}

std::optional<std::size_t> Turns::next() const {
  const Unit* least = nullptr;
  for (const Unit& unit : units_)
    if (!unit.left.empty() && (!least || unit.seconds < least->seconds)) least = &unit;
  if (!least) return std::nullopt;
  const auto news = [&](const Case& one) {
    double sum = 0;
    least->pairs(
        one, [&](std::size_t pair) { sum += 1 / (1 + static_cast<double>(least->runs[pair])); });
    return sum;
  };
  return std::ranges::max_element(least->left, {}, news)->index;
}

void Turns::took(std::size_t index, double seconds) {
  for (Unit& unit : units_) {
    const auto found = std::ranges::find(unit.left, index, &Case::index);
    if (found == unit.left.end()) continue;
    unit.seconds += seconds;
    unit.pairs(*found, [&](std::size_t pair) { ++unit.runs[pair]; });
    unit.left.erase(found);
    return;
  }
}

}  // namespace harness

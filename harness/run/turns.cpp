#include "harness/run/turns.h"

#include <algorithm>
#include <map>

namespace harness {

// Includes a value with itself, because a unit may have only one axis.
template <class Visit>
void Turns::Unit::pairs(std::size_t place, Visit visit) const {
  const std::vector<std::size_t>& mine = values[place];
  for (std::size_t a = 0; a < mine.size(); ++a)
    for (std::size_t b = 0; b <= a; ++b) visit(mine[a] * numbers + mine[b]);
}

std::size_t Turns::Unit::next() const {
  std::size_t best = 0;
  double most = -1;
  for (std::size_t place = 0; place < cases.size(); ++place) {
    if (was_run[place]) continue;
    double news = 0;
    pairs(place, [&](std::size_t pair) { news += 1 / (1 + static_cast<double>(runs[pair])); });
    if (news <= most) continue;
    most = news;
    best = place;
  }
  return best;
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
    Unit& unit = units_[place->second];
    unit.cases.push_back(index);
    std::vector<std::size_t>& values = unit.values.emplace_back();
    auto& known = numbers[place->second];
    for (const auto& axis : plan.axes)
      values.push_back(known.try_emplace(axis, known.size()).first->second);
  }
  for (std::size_t i = 0; i < units_.size(); ++i) {
    Unit& unit = units_[i];
    unit.numbers = numbers[i].size();
    unit.runs.resize(unit.numbers * unit.numbers);
    unit.was_run.resize(unit.cases.size());
    unit.left = unit.cases.size();
  }
}

std::optional<std::size_t> Turns::next() const {
  const Unit* least = nullptr;
  for (const Unit& unit : units_)
    if (unit.left > 0 && (!least || unit.seconds < least->seconds)) least = &unit;
  if (!least) return std::nullopt;
  return least->cases[least->next()];
}

void Turns::took(std::size_t index, double seconds) {
  for (Unit& unit : units_) {
    const auto found = std::ranges::find(unit.cases, index);
    if (found == unit.cases.end()) continue;
    const auto place = static_cast<std::size_t>(found - unit.cases.begin());
    unit.seconds += seconds;
    if (unit.was_run[place]) return;
    unit.was_run[place] = true;
    --unit.left;
    unit.pairs(place, [&](std::size_t pair) { ++unit.runs[pair]; });
    return;
  }
}

}  // namespace harness

// A comparison on the console.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <ranges>
#include <set>

#include "harness/compare/compare.h"
#include "harness/record/summary.h"

namespace harness {
namespace {

constexpr std::size_t columns = 100, name_column = 28;
constexpr std::size_t many_cases = 40, most_inconclusive = 20, most_names = 10;
constexpr int many_launches = 1000;

std::string ratio_text(double ratio) { return fmt::format("{:+.1f}", 100 * (ratio - 1)); }

// Returns a line for each of the first names, and the number of the others.
std::string first_lines(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < names.size() && i < most_names; ++i)
    text += fmt::format("  {}\n", plain(names[i]));
  if (names.size() > most_names) text += fmt::format("  and {} more\n", names.size() - most_names);
  return text;
}

// Returns the parts of two long values that differ, with a little context.
std::pair<std::string, std::string> clipped(const std::string& base, const std::string& next) {
  constexpr std::size_t most = 24, before = 8;
  if (base.size() <= most && next.size() <= most) return {plain(base), plain(next)};
  const auto differ = std::ranges::mismatch(base, next);
  const auto same = static_cast<std::size_t>(differ.in1 - base.begin());
  const std::size_t start = same > before ? same - before : 0;
  const auto part = [&](const std::string& text) {
    const std::string middle = text.substr(std::min(start, text.size()), most);
    return plain(fmt::format("{}{}{}", start > 0 ? ".." : "", middle,
                             start + most < text.size() ? ".." : ""));
  };
  return {part(base), part(next)};
}

std::string differences_text(const RunComparison& comparison) {
  std::string text;
  for (const bool declared : {false, true}) {
    std::string lines;
    for (const Difference& d : comparison.differences) {
      if (d.declared != declared) continue;
      const auto [base, next] = clipped(d.base, d.next);
      lines += fmt::format("  {:<34}  {} -> {}\n", d.field, base, next);
    }
    if (lines.empty()) continue;
    text += declared ? "Differs, as declared:\n" : "Differs:\n";
    text += lines;
  }
  if (comparison.mixed.empty()) return text;
  return text + "Differs between launches of one side:\n" + first_lines(comparison.mixed);
}

// The common axes of a unit's compared cases are in the title, the others in each line.
struct UnitNames {
  std::string title;
  std::set<std::string> varying;
};

UnitNames names_of(const std::string& unit, const std::vector<CaseTimes>& all) {
  std::vector<const Axes*> cases;
  for (const CaseTimes& one : all)
    if (one.unit == unit) cases.push_back(&one.axes);
  const UnitAxes axes = axes_of(cases);
  UnitNames names{unit, {axes.varying.begin(), axes.varying.end()}};
  for (const auto& [axis, value] : axes.fixed)
    if (cases.size() == 1)
      names.varying.insert(axis);
    else
      names.title += fmt::format(" {}:{}", axis, value);
  return names;
}

// "ring float ranks:4 bytes:8". Words are shown without their axes.
std::string short_name(const CaseTimes& times, const UnitNames& names) {
  std::string text;
  for (const auto& [axis, value] : times.axes) {
    if (!names.varying.contains(axis)) continue;
    const bool word = !value.empty() && std::isalpha(static_cast<unsigned char>(value[0])) &&
                      value != "on" && value != "off" && value != "default" && value != "none";
    text += fmt::format("{}{}", text.empty() ? "" : " ", word ? value : axis + ":" + value);
  }
  return text;
}

// Folds text into lines that fit the console, broken between words.
std::string folded(const std::string& text, std::size_t indent) {
  std::string lines, line;
  for (const auto part : std::views::split(text, ' ')) {
    const std::string word(part.begin(), part.end());
    if (!line.empty() && indent + line.size() + 1 + word.size() > columns) {
      lines += std::string(indent, ' ') + line + "\n";
      line = word;
    } else {
      line += (line.empty() ? "" : " ") + word;
    }
  }
  return lines + std::string(indent, ' ') + line + "\n";
}

std::string row(const CaseTimes& times, const UnitNames& names) {
  std::string name = short_name(times, names), above;
  if (name.size() > name_column) {
    above = folded(name, 2);
    name.clear();
  }
  const std::string interval = times.interval
                                   ? fmt::format("{} .. {} %", ratio_text(times.interval->low),
                                                 ratio_text(times.interval->high))
                                   : "-";
  const std::string seen =
      times.detectable ? fmt::format("{:.1f} %", 100 * *times.detectable) : "-";
  return above + fmt::format("  {:<28}{:>8}{:>9}{:>9} %{:>20}{:>8}  {}\n", name,
                             seconds_text(median(times.base)), seconds_text(median(times.next)),
                             ratio_text(times.ratio), interval, seen, harness::name(times.verdict));
}

// Returns all cases. If there are many, returns the changed cases and the undecided cases with the
// largest shifts.
std::vector<const CaseTimes*> shown(const std::vector<CaseTimes>& all, bool each) {
  std::vector<const CaseTimes*> chosen;
  for (const CaseTimes& times : all) chosen.push_back(&times);
  if (each || all.size() <= many_cases) return chosen;
  std::vector<double> undecided;
  for (const CaseTimes& times : all)
    if (times.verdict == TimeVerdict::inconclusive)
      undecided.push_back(std::abs(std::log(times.ratio)));
  std::ranges::sort(undecided, std::greater<>());
  const double least = undecided.size() > most_inconclusive ? undecided[most_inconclusive - 1] : 0;
  std::erase_if(chosen, [&](const CaseTimes* times) {
    return times->verdict == TimeVerdict::equivalent ||
           (times->verdict == TimeVerdict::inconclusive &&
            std::abs(std::log(times->ratio)) < least);
  });
  return chosen;
}

std::string table(const RunComparison& comparison, bool all) {
  const auto chosen = shown(comparison.times, all);
  if (chosen.empty()) return "";
  std::string text =
      fmt::format("\n  {:<28}{:>8}{:>9}{:>11}{:>20}{:>8}  {}\n", "case", comparison.base_label,
                  comparison.next_label, "shift",
                  fmt::format("{:.3g} % interval", 100 * (1 - comparison.level)), "visible", "");
  std::string unit;
  std::map<std::string, UnitNames> names;  // the cases of a unit need not be neighbours
  for (const CaseTimes* times : chosen) {
    const auto [found, is_new] = names.try_emplace(times->unit);
    if (is_new) found->second = names_of(times->unit, comparison.times);
    if (times->unit != unit) text += folded(found->second.title, 0);
    unit = times->unit;
    text += row(*times, found->second);
  }
  if (chosen.size() < comparison.times.size())
    text += fmt::format("  and {} more that did not change or are undecided; --all lists them\n",
                        comparison.times.size() - chosen.size());
  return text +
         folded("visible: the least change that these launches would have shown in one case", 2);
}

std::string numbers_text(const RunComparison& comparison, bool all) {
  std::string text;
  for (const bool unsteady : {false, true}) {
    std::vector<std::pair<std::string, std::string>> cases;  // name, lines
    for (const NumberChange& change : comparison.numbers) {
      if (change.unsteady != unsteady) continue;
      if (cases.empty() || cases.back().first != change.name) cases.emplace_back(change.name, "");
      cases.back().second +=
          fmt::format("    {}: {} -> {}\n", change.number, plain(change.base), plain(change.next));
    }
    if (cases.empty()) continue;
    text += unsteady
                ? fmt::format(
                      "\nNumbers that vary between launches of {} and are therefore "
                      "inconclusive ({} cases):\n",
                      comparison.base_label, cases.size())
                : fmt::format("\nNumbers that changed{} ({} cases):\n",
                              comparison.numbers_declared ? ", as declared" : "", cases.size());
    for (std::size_t i = 0; i < cases.size() && (all || i < most_names); ++i)
      text += fmt::format("  {}\n{}", plain(cases[i].first), cases[i].second);
    if (!all && cases.size() > most_names)
      text += fmt::format("  and {} more cases; --all lists them\n", cases.size() - most_names);
  }
  return text;
}

std::string names_text(std::string_view what, const std::vector<std::string>& names) {
  if (names.empty()) return "";
  return fmt::format("\n{} ({}):\n", what, names.size()) + first_lines(names);
}

std::string reasons_text(const RunComparison& comparison) {
  std::map<std::string, std::vector<int>> reasons;  // launches that would decide each case
  for (const CaseTimes& times : comparison.times)
    if (times.verdict == TimeVerdict::inconclusive)
      reasons[times.reason].push_back(times.launches_wanted);
  std::string text;
  for (const auto& [reason, wanted] : reasons) {
    const auto [least, most] = std::ranges::minmax(wanted);
    std::string line = fmt::format("INCONCLUSIVE {}: {}", wanted.size(), reason);
    const auto number = [](int launches) {
      return launches > many_launches ? fmt::format("more than {}", many_launches)
                                      : std::to_string(launches);
    };
    if (least > 0)
      line += least == most || least > many_launches
                  ? fmt::format("; about {} per side would decide it", number(least))
                  : fmt::format("; about {} to {} per side would decide them", least, number(most));
    text += folded(line, 0);
  }
  return text;
}

}  // namespace

std::string text(const RunComparison& comparison, bool all) {
  std::string text;
  const auto side = [&](const std::string& label, const std::vector<std::string>& paths) {
    text += fmt::format("{}: {} launch{}, {}{}\n", label, paths.size(),
                        paths.size() == 1 ? "" : "es", paths[0], paths.size() > 1 ? ", .." : "");
  };
  side(comparison.base_label, comparison.base_paths);
  side(comparison.next_label, comparison.next_paths);
  for (const std::string& note : comparison.notes) text += fmt::format("note: {}\n", plain(note));
  text += differences_text(comparison);
  if (!comparison.comparable) return text;
  text += table(comparison, all);
  text += numbers_text(comparison, all);
  text += names_text("Only in " + comparison.base_label, comparison.only_base);
  text += names_text("Only in " + comparison.next_label, comparison.only_next);
  text += names_text("Not in all launches", comparison.not_in_all);
  std::vector<std::string> untimed;
  for (const auto& [name, why] : comparison.untimed)
    untimed.push_back(fmt::format("{}  ({})", name, why));
  text += names_text("Without a time to compare", untimed);
  text += fmt::format("\n{}", reasons_text(comparison));
  for (const TimeVerdict verdict : all_time_verdicts)
    text += fmt::format("{} {}, ", name(verdict), comparison.count(verdict));
  return text + fmt::format("of {} cases; {} numbers changed{}\n", comparison.times.size(),
                            comparison.changed_numbers(),
                            comparison.numbers_declared ? ", as declared" : "");
}

}  // namespace harness

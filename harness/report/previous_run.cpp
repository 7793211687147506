#include "harness/report/previous_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "harness/report/junit.h"
#include "harness/report/page_parts.h"

namespace harness {
namespace {

namespace fs = std::filesystem;
constexpr std::size_t most_rows = 6;  // of each table

bool is_of_the_machine(const std::string& field) {
  return field == "host" || field == "ranks" || field.starts_with("hardware.");
}

Fields machine_of(Fields fields) {
  std::erase_if(fields, [](const auto& field) { return !is_of_the_machine(field.first); });
  return fields;
}

// Stops reading run.json at its date, which is the first key of its context.
class DateOnly : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::string date;
  bool key(string_t& name) override {
    wanted_ = name == "date";
    return true;
  }
  bool string(string_t& value) override {
    if (wanted_) date = value;
    return !wanted_;
  }
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override { return true; }
  bool end_object() override { return true; }
  bool start_array(std::size_t) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception&) override {
    return false;
  }

 private:
  bool wanted_ = false;
};

std::string date_of(const fs::path& run) {
  DateOnly reader;
  std::ifstream file(run / "run.json", std::ios::binary);  // read only as far as the date
  nlohmann::json::sax_parse(file, &reader);
  return reader.date;
}

// Returns the folders of older runs, the latest first.
std::vector<std::pair<std::string, fs::path>> older_runs(const std::string& directory,
                                                         const std::string& date) {
  std::vector<std::pair<std::string, fs::path>> found;
  std::error_code failed;
  const fs::path own = fs::weakly_canonical(directory, failed);
  for (const auto& entry : fs::directory_iterator(own.parent_path(), failed)) {
    if (entry.path() == own || !fs::exists(entry.path() / "run.json", failed)) continue;
    if (std::string other = date_of(entry.path()); !other.empty() && other < date)
      found.emplace_back(std::move(other), entry.path());
  }
  std::ranges::sort(found, std::greater{});
  return found;
}

Launch launch_of(std::string path, RunFile run, Fields fields) {
  for (Record& record : run.records) record.samples = {};
  return {std::move(path), run.date, std::move(fields), std::move(run.records)};
}

std::string rows_of(const std::vector<const CaseTimes*>& cases) {
  std::string rows;
  for (const CaseTimes* one : cases)
    rows +=
        fmt::format("<tr><td class=\"name\">{}</td>{}</tr>\n", breakable(one->name),
                    number_cells({html_seconds(one->base.front()), html_seconds(one->next.front()),
                                  fmt::format("{:+.0f}\xe2\x80\x89%", 100 * (one->ratio - 1)),
                                  fmt::format("{:.0f}\xe2\x80\x89%", 100 * one->floor)}));
  return rows;
}

std::string times_html(const RunComparison& comparison) {
  std::vector<const CaseTimes*> slower, faster;
  for (const CaseTimes& one : comparison.times) {
    if (one.base.empty() || one.next.empty()) continue;
    if (one.ratio >= 1 + one.floor) slower.push_back(&one);
    if (one.ratio <= 1 / (1 + one.floor)) faster.push_back(&one);
  }
  std::ranges::sort(slower, std::greater{}, &CaseTimes::ratio);
  std::ranges::sort(faster, {}, &CaseTimes::ratio);
  std::string text = fmt::format(
      "<p>{} in both runs: {} took longer and {} took less time by more than the smallest "
      "relevant change.</p>\n",
      counted(comparison.times.size(), "timed case"), slower.size(), faster.size());
  std::vector<const CaseTimes*> shown;
  for (const auto* side : {&slower, &faster})
    shown.insert(shown.end(), side->begin(),
                 side->begin() + std::ssize(*side) -
                     std::max<std::ptrdiff_t>(0, std::ssize(*side) - most_rows));
  if (shown.empty()) return text;
  return text + table("Largest changes of times", "wrapping",
                      heads({"Largest changes"}) +
                          number_heads({"Before", "Now", "Change", "Relevant from"}),
                      rows_of(shown));
}

std::string numbers_html(const RunComparison& comparison) {
  std::string verdicts, others;
  std::size_t changed = 0;
  for (const NumberChange& change : comparison.numbers) {
    if (change.number == "verdict")
      verdicts += fmt::format("<tr><td class=\"name\">{}</td><td>{}</td><td>{}</td></tr>\n",
                              breakable(change.name), escaped(change.base), escaped(change.next));
    else
      ++changed;
  }
  std::string text = verdicts.empty()
                         ? "<p>No verdict changed.</p>\n"
                         : table("Changed verdicts", "wrapping",
                                 heads({"Changed verdicts", "Before", "Now"}), verdicts);
  if (changed > 0)
    text += fmt::format("<p>{} changed: errors, bits, bytes, messages or losses.</p>\n",
                        counted(changed, "exact number"));
  return text;
}

std::string differences_html(const RunComparison& comparison) {
  std::string rows;
  for (const Difference& one : comparison.differences)
    rows += fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td></tr>\n", escaped(one.field),
                        escaped(one.base), escaped(one.next));
  if (rows.empty()) return "<p>Software, environment and options are the same.</p>\n";
  return fold(
      "",
      fmt::format("{} of software, environment or options",
                  counted(comparison.differences.size(), "difference")),
      table("Differences of the two runs", "wrapping", heads({"Field", "Before", "Now"}), rows));
}

}  // namespace

std::optional<PreviousRun> previous_run(const std::string& directory, const RunFile& run,
                                        const Fields& fields) {
  if (fields.empty() || run.date.empty()) return std::nullopt;
  for (const auto& [date, path] : older_runs(directory, run.date)) {
    try {
      RunFile older = read_run(path.string());
      Fields before = read_fields(path.string(), older);
      if (older.context.status != "complete" || machine_of(before) != machine_of(fields)) continue;
      CompareOptions options;
      for (const Difference& one : differences(before, fields, Factors({})))
        options.factors.push_back(one.field);
      PreviousRun previous{path.filename().string(), date, {}};
      previous.comparison = compare({launch_of(path.string(), std::move(older), std::move(before))},
                                    {launch_of(directory, run, fields)}, options);
      if (previous.comparison.comparable) return previous;
    } catch (const UsageError&) {
      // Not a run, or no common case.
    }
  }
  return std::nullopt;
}

std::string previous_run_html(const PreviousRun& previous) {
  const RunComparison& comparison = previous.comparison;
  std::string text = fmt::format(
      "<p>Compared with <code>{}</code> of {}, on the same machine.</p>\n<p class=\"note\">Each "
      "side is one "
      "launch, so no change of a time is statistically certain. <code>shardmark ab</code> repeats "
      "launches and decides.</p>\n",
      escaped(previous.name), escaped(previous.date));
  text += numbers_html(comparison) + times_html(comparison);
  if (!comparison.only_base.empty() || !comparison.only_next.empty())
    text += fmt::format("<p>{} only in the previous run, {} only in this run.</p>\n",
                        counted(comparison.only_base.size(), "case"),
                        counted(comparison.only_next.size(), "case"));
  return text + differences_html(comparison);
}

}  // namespace harness

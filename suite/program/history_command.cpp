#include "suite/program/history_command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <filesystem>

#include "harness/history/exports.h"
#include "harness/history/store.h"
#include "harness/history/track.h"
#include "harness/record/run_json.h"
#include "harness/record/summary.h"
#include "harness/report/figures.h"
#include "harness/run/run.h"
#include "machine/base/names.h"
#include "suite/program/compare_command.h"

namespace suite::comparison {
namespace {

using harness::History;
using harness::UsageError;

int add(History& history, const std::vector<std::string>& given) {
  std::vector<std::string> notes;
  const auto launches = harness::read_launches(given, "history", notes);
  int added = 0;
  for (const harness::Launch& launch : launches) {
    const bool is_new = history.add(launch);
    added += is_new;
    if (!is_new) notes.push_back(fmt::format("{} is there already", launch.path));
  }
  for (const std::string& note : notes) fmt::print("note: {}\n", harness::plain(note));
  fmt::print("{} of {} runs added\n", added, launches.size());
  return harness::accepted;
}

int list(const History& history) {
  const auto runs = history.runs();
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (i > 0)
      for (const harness::Difference& d : harness::breaks(runs[i - 1], runs[i]))
        fmt::print("  -- {}: {} -> {}\n", d.field, harness::plain(d.base), harness::plain(d.next));
    fmt::print("{:>4}  {}  {:<20}  {} cases, {} failed  {}\n", runs[i].id, runs[i].date,
               runs[i].commit, runs[i].cases, runs[i].failed, runs[i].path);
  }
  return harness::accepted;
}

// Of all cases those whose level changed, with the last change.
int show_changes(const History& history) {
  int cases = 0, changed = 0;
  for (const std::string& name : history.cases()) {
    const harness::Track track = harness::track_of(history, name);
    ++cases;
    std::size_t last = 0;
    for (std::size_t i = 1; i < track.runs.size(); ++i)
      if (track.runs[i].change) last = i;
    if (last == 0) continue;
    ++changed;
    const harness::Track::At &before = track.runs[last - 1], &after = track.runs[last];
    fmt::print("{:+6.1f} %  {} -> {} since run {} ({}, {})  {}\n",
               100 * (after.level / before.level - 1), harness::seconds_text(before.level),
               harness::seconds_text(after.level), after.run.id, after.run.date, after.run.commit,
               harness::plain(name));
  }
  fmt::print("{} of {} cases changed their level\n", changed, cases);
  return harness::accepted;
}

// The runs of these numbers, in that order; none given: the last, or all where the format has a
// place for each.
std::vector<harness::StoredRun> chosen(const History& history, const std::vector<int>& ids,
                                       harness::ExportFormat format) {
  std::vector<harness::StoredRun> all = history.runs(), runs;
  for (const int id : ids) {
    const auto found = std::ranges::find(all, id, &harness::StoredRun::id);
    if (found == all.end())
      throw UsageError(
          fmt::format("--run {}: there is no such run; shardmark history list shows all", id));
    runs.push_back(*found);
  }
  if (!ids.empty()) return runs;
  if (format != harness::ExportFormat::otava && all.size() > 1)
    all.erase(all.begin(), all.end() - 1);
  return all;
}

int plot(const History& history, std::vector<std::string> names, const std::string& out_dir) {
  if (names.empty()) names = history.cases();
  std::vector<harness::Track> tracks;
  for (const std::string& name : names) tracks.push_back(harness::track_of(history, name));
  std::error_code failed;
  std::filesystem::create_directories(out_dir, failed);
  if (failed) throw UsageError(fmt::format("cannot write to {}: {}", out_dir, failed.message()));
  harness::write_file(out_dir + "/history.json", harness::json(tracks));
  const harness::Figures figures = harness::figures_of(out_dir, true);
  if (!figures.missing.empty()) {
    fmt::print(stderr, "shardmark: figures: {}\n", figures.missing);
    return harness::environment;
  }
  fmt::print("{0}/figures: {1} figures\n", out_dir, figures.figures.size());
  return harness::accepted;
}

}  // namespace

int run_history(int argc, char** argv) {
  std::string file = "results/history.sqlite", out_dir = "results/history";
  std::string format, export_file;
  std::vector<std::string> runs, names;
  std::vector<int> ids;
  CLI::App app("Keeps runs over time in one SQLite file and finds where cases changed their level.",
               "shardmark history");
  app.require_subcommand(0, 1);
  app.fallthrough();
  app.add_option("--db", file, "the file")->capture_default_str();
  CLI::App* adding = app.add_subcommand("add", "take runs in");
  adding->add_option("runs", runs, "run directories, or folders of them")->required();
  CLI::App* listing = app.add_subcommand("list", "all runs, and what changed between them");
  CLI::App* showing = app.add_subcommand("show", "a case over time; of all cases what changed");
  showing->add_option("case", names, "names as in run.json");
  CLI::App* plotting = app.add_subcommand("plot", "cases over time, as figures");
  plotting->add_option("case", names, "names as in run.json; all when none is named");
  plotting->add_option("--out", out_dir, "folder")->capture_default_str();
  CLI::App* exporting = app.add_subcommand("export", "for other programs");
  exporting->add_option("case", names, "names as in run.json; all when none is named");
  exporting->add_option("--format", format, "google_benchmark, bencher, otava or prometheus");
  exporting
      ->add_option("--run", ids,
                   "of this run, by its number in list; repeatable. The last when not given; "
                   "otava: all")
      ->delimiter(',')
      ->allow_extra_args(false);
  exporting->add_option("--out", export_file, "file; standard output when not given");
  const std::vector<CLI::App*> commands{adding, listing, showing, plotting, exporting};
  app.allow_extras();
  for (CLI::App* command : commands) command->allow_extras();
  std::vector<std::string> words(argv + 2, argv + argc);
  std::reverse(words.begin(), words.end());  // CLI11 takes them last first
  try {
    app.parse(words);
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", app.help());
    return harness::accepted;
  } catch (const CLI::ParseError& error) {
    throw UsageError(error.what());
  }
  for (const std::string& word : app.remaining(true)) {
    if (!word.starts_with("-"))
      throw UsageError(
          machine::unknown("command", word, {"add", "list", "show", "plot", "export"}));
    refuse_words({word}, "history", {"--db", "--out", "--format", "--run", "--help"});
  }
  const auto asked = std::ranges::find_if(commands, [](CLI::App* one) { return one->parsed(); });
  if (asked == commands.end()) {
    fmt::print("{}", app.help());
    return harness::accepted;
  }
  if (*asked == adding) {
    const auto folder = std::filesystem::path(file).parent_path();
    std::error_code failed;
    if (!folder.empty()) std::filesystem::create_directories(folder, failed);
  } else if (!std::filesystem::exists(file)) {
    throw UsageError(
        fmt::format("there is no history at {}; shardmark history add makes one", file));
  }
  History history(file);
  if (*asked == adding) return add(history, runs);
  if (*asked == listing) return list(history);
  if (*asked == plotting) return plot(history, names, out_dir);
  if (*asked == exporting) {
    const harness::ExportFormat of = harness::parse_export_format(format);
    const std::string text = harness::exported(history, of, chosen(history, ids, of), names);
    if (export_file.empty())
      fmt::print("{}", text);
    else
      harness::write_file(export_file, text);
    return harness::accepted;
  }
  if (names.empty()) return show_changes(history);
  for (const std::string& name : names)
    fmt::print("{}", harness::text(harness::track_of(history, name)));
  return harness::accepted;
}

}  // namespace suite::comparison

// `shardmark history`: runs over time in one file.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>

#include "harness/history/exports.h"
#include "harness/history/store.h"
#include "harness/history/track.h"
#include "harness/record/run_json.h"
#include "harness/record/summary.h"
#include "harness/report/figures.h"
#include "harness/run/run.h"
#include "machine/base/names.h"
#include "suite/comparison/commands.h"
#include "suite/options/options.h"

namespace suite::comparison {
namespace {

using harness::History;
using harness::UsageError;

struct Words {
  std::string file = "results/history.sqlite", plots = "results/history";
  std::string format, export_file;
  std::vector<std::string> runs, names;
  std::vector<int> ids;
};

int add(History& history, const Words& words) {
  std::vector<std::string> notes;
  const auto launches = harness::read_launches(words.runs, "history", notes);
  int added = 0;
  for (const harness::Launch& launch : launches) {
    const bool is_new = history.add(launch);
    added += is_new;
    if (!is_new) notes.push_back(fmt::format("{} is already stored", launch.path));
  }
  for (const std::string& note : notes) fmt::print("note: {}\n", harness::plain(note));
  fmt::print("{} of {} runs added\n", added, launches.size());
  return harness::accepted;
}

int list(History& history, const Words&) {
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

// Prints the cases whose level changed, with the last change.
int show_changes(const History& history) {
  int cases = 0, changed = 0;
  const harness::Tracks tracks(history);
  for (const std::string& name : tracks.cases()) {
    const harness::Track track = tracks.of(name);
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

// Returns the runs with these ids, in order. Without ids: the last run, or all runs if the format
// supports several.
std::vector<harness::StoredRun> chosen(const History& history, const std::vector<int>& ids,
                                       harness::ExportFormat format) {
  std::vector<harness::StoredRun> all = history.runs(), runs;
  for (const int id : ids) {
    const auto found = std::ranges::find(all, id, &harness::StoredRun::id);
    if (found == all.end())
      throw UsageError(
          fmt::format("--run is {}; expected a run that shardmark history list shows", id));
    runs.push_back(*found);
  }
  if (!ids.empty()) return runs;
  if (format != harness::ExportFormat::otava && all.size() > 1)
    all.erase(all.begin(), all.end() - 1);
  return all;
}

int plot(History& history, const Words& words) {
  const std::string& out_dir = words.plots;
  const harness::Tracks all(history);
  std::vector<harness::Track> tracks;
  for (const std::string& name : words.names.empty() ? all.cases() : words.names)
    tracks.push_back(all.of(name));
  std::error_code failed;
  std::filesystem::create_directories(out_dir, failed);
  if (failed) throw UsageError(fmt::format("cannot write to {}: {}", out_dir, failed.message()));
  harness::write_file(out_dir + "/history.json", harness::json(tracks));
  const harness::Figures figures = harness::figures_of(out_dir, true);
  if (!figures.missing.empty())
    return complain(harness::environment, "figures: " + figures.missing);
  fmt::print("{0}/figures: {1} figures\n", out_dir, figures.figures.size());
  return harness::accepted;
}

int show(History& history, const Words& words) {
  if (words.names.empty()) return show_changes(history);
  const harness::Tracks tracks(history);
  for (const std::string& name : words.names) fmt::print("{}", harness::text(tracks.of(name)));
  return harness::accepted;
}

int write_export(History& history, const Words& words) {
  const harness::ExportFormat format = harness::parse_export_format(words.format);
  const std::string text =
      harness::exported(history, format, chosen(history, words.ids, format), words.names);
  if (words.export_file.empty())
    fmt::print("{}", text);
  else
    harness::write_file(words.export_file, text);
  return harness::accepted;
}

constexpr const char* all_cases = "names as in run.json";

struct Action {
  std::string_view name, arguments, about;
  void (*add_options)(Options& options, Words& words);
  int (*run)(History& history, const Words& words);
};
constexpr Action actions[] = {
    {"add", "RUN...", "Stores runs: run directories, or folders of them.",
     [](Options& options, Words& words) {
       options.arguments("RUN", words.runs, "a run directory, or a folder of them", 1);
     },
     add},
    {"list", "", "Lists all runs, and the differences between them.", [](Options&, Words&) {},
     list},
    {"show", "[CASE...]", "Shows cases over time; without CASE, the cases that changed.",
     [](Options& options, Words& words) { options.arguments("CASE", words.names, all_cases); },
     show},
    {"plot", "[CASE...]", "Draws cases over time; without CASE, all cases.",
     [](Options& options, Words& words) {
       options.arguments("CASE", words.names, all_cases);
       options.text("--out", "DIR", words.plots, "folder (default: results/history)");
     },
     plot},
    {"export", "[CASE...]", "Writes runs for other programs; without CASE, all cases.",
     [](Options& options, Words& words) {
       options.arguments("CASE", words.names, all_cases);
       options.text("--format", "NAME", words.format,
                    "google_benchmark, bencher, otava or prometheus");
       options.read(
           "--run", "N",
           [&words](const std::string& text) {
             for (const std::string& one : split_list(text))
               words.ids.push_back(static_cast<int>(
                   whole_number("--run", one, 1, std::numeric_limits<int>::max())));
           },
           "number of the run in the list; repeatable (default: the last run; otava: all)",
           Options::Times::each);
       options.text("--out", "FILE", words.export_file, "file (default: standard output)");
     },
     write_export},
};

void add_file(Options& options, Words& words) {
  options.text("--db", "FILE", words.file, "the history (default: results/history.sqlite)");
}

const Action& action_of(const std::string& word) {
  std::vector<std::string> names;
  for (const Action& action : actions) {
    if (action.name == word) return action;
    names.emplace_back(action.name);
  }
  throw UsageError(machine::unknown("command", word, names));
}

}  // namespace

int run_history(int argc, char** argv) {
  Words words;
  std::vector<std::string> rest;
  std::vector<std::pair<std::string, std::string>> rows;
  for (const Action& action : actions) rows.emplace_back(action.name, action.about);
  Options options("history", "COMMAND",
                  "Keeps runs over time in one SQLite file and finds the cases that changed.");
  add_file(options, words);
  options.footer(
      fmt::format("Commands (shardmark history COMMAND --help):\n{}", two_columns(rows)));
  options.pass_from_first_argument(rest);
  options.argument_choices([] {
    std::vector<std::string> names;
    for (const Action& action : actions) names.emplace_back(action.name);
    return names;
  });
  if (!options.parse({argv + 2, argv + argc})) return harness::accepted;
  if (rest.empty()) {
    fmt::print("{}", options.help());
    return harness::accepted;
  }
  const Action& action = action_of(rest.front());
  Options own(fmt::format("history {}", action.name), std::string(action.arguments),
              std::string(action.about));
  add_file(own, words);
  action.add_options(own, words);
  if (!own.parse({rest.begin() + 1, rest.end()})) return harness::accepted;
  if (action.name == "add") {
    const auto folder = std::filesystem::path(words.file).parent_path();
    std::error_code failed;
    if (!folder.empty()) std::filesystem::create_directories(folder, failed);
  } else if (!std::filesystem::exists(words.file)) {
    throw UsageError(
        fmt::format("cannot read {}: the file does not exist; shardmark history add creates "
                    "one",
                    words.file));
  }
  History history(words.file);
  return action.run(history, words);
}

}  // namespace suite::comparison

#include "suite/program/compare_command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "harness/run/run.h"
#include "machine/base/names.h"
#include "suite/files/new_file.h"

namespace suite::comparison {
namespace {

using harness::RunComparison;
using harness::TimeVerdict;
using harness::UsageError;

struct Options {
  std::vector<std::string> base, next;
  Comparing comparing;
  std::string json_file, help;
};

std::string floors_help() {
  std::string text = "Less than this is no change, however certain:\n";
  for (const harness::Floor& floor : harness::floors())
    text += fmt::format("  {:<12}{:>3.0f} %  {}\n", floor.kind, 100 * floor.ratio, floor.reason);
  return text + "Exit code: 0; 1 when a case is SLOWER or a number changed; 2 when not comparable.";
}

Options parse(int argc, char** argv) {
  Options options;
  std::vector<std::string> words, against;
  CLI::App app(
      "Compares launches of the same cases: SLOWER, FASTER, EQUIVALENT or INCONCLUSIVE for each,\n"
      "and every number that changed. BASE and NEW are run directories, or folders of them:\n"
      "  shardmark compare [OPTIONS] BASE NEW\n"
      "  shardmark compare [OPTIONS] BASE... --against NEW...",
      "shardmark compare");
  app.allow_extras();
  app.footer(floors_help());
  app.add_option("runs", words, "BASE and NEW; with --against, the launches of BASE");
  app.add_option("--against", against, "the launches of NEW");
  options.comparing.add_flags(app);
  app.add_option("--json", options.json_file, "write the comparison as JSON");
  options.help = options.comparing.parse(app, argc, argv);
  if (!options.help.empty()) return options;
  std::vector<std::string> flags;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
  refuse_words(app.remaining(), "compare", flags);
  if (against.empty()) {
    if (words.size() != 2)
      throw UsageError(fmt::format(
          "compare takes BASE and NEW, but {} {} given; for several launches a side: folders of "
          "them, or BASE... --against NEW...",
          words.size(), words.size() == 1 ? "is" : "are"));
    against.push_back(words[1]);
    words.pop_back();
  } else if (words.empty()) {
    throw UsageError("compare: no BASE before --against");
  }
  options.base = words;
  options.next = against;
  return options;
}

const std::vector<std::string> fail_on_names{"inconclusive", "missing", "faster", "unsteady"};

}  // namespace

void Comparing::add_flags(CLI::App& app) {
  app.add_option("--factor", options.factors,
                 "what may differ: a field of environment.json (NCCL_ALGO, nccl, host), an axis, "
                 "numbers; repeatable")
      ->delimiter(',')
      ->allow_extra_args(false);
  app.add_option("--floor", floor_percent_, "percent of time that matter, for all cases")
      ->check(CLI::Range(0.0, 1000.0));
  app.add_option("--fail-on", fail_on,
                 fmt::format("exit 1 also for these: {}", fmt::join(fail_on_names, ", ")))
      ->delimiter(',')
      ->allow_extra_args(false);
  app.add_flag("--all", all, "list every case, however many");
}

std::string Comparing::parse(CLI::App& app, int argc, char** argv) {
  std::vector<std::string> given(argv + 2, argv + argc);
  std::reverse(given.begin(), given.end());  // CLI11 takes them last first
  try {
    app.parse(given);
  } catch (const CLI::CallForHelp&) {
    return app.help();
  } catch (const CLI::ParseError& error) {
    throw UsageError(error.what());
  }
  if (floor_percent_ >= 0) options.floor = floor_percent_ / 100;
  for (const std::string& name : fail_on)
    if (std::ranges::find(fail_on_names, name) == fail_on_names.end())
      throw UsageError(machine::unknown("--fail-on", name, fail_on_names));
  return {};
}

int Comparing::exit_code(const RunComparison& comparison) const {
  if (!comparison.comparable) return harness::usage;
  const auto asked = [&](std::string_view what) {
    return std::ranges::find(fail_on, what) != fail_on.end();
  };
  const bool missing = !comparison.only_base.empty() || !comparison.only_next.empty() ||
                       !comparison.not_in_all.empty();
  const bool unsteady = comparison.changed_numbers() < static_cast<int>(comparison.numbers.size());
  const bool failed = comparison.count(TimeVerdict::slower) > 0 ||
                      (comparison.changed_numbers() > 0 && !comparison.numbers_declared) ||
                      (asked("inconclusive") && comparison.count(TimeVerdict::inconclusive) > 0) ||
                      (asked("faster") && comparison.count(TimeVerdict::faster) > 0) ||
                      (asked("missing") && missing) || (asked("unsteady") && unsteady);
  return failed ? harness::case_failed : harness::accepted;
}

std::string refusal(const RunComparison& comparison) {
  std::vector<std::string> fields;
  for (const harness::Difference& d : comparison.differences)
    if (!d.declared) fields.push_back(d.field);
  if (fields.empty())
    return fmt::format("not comparable: launches of one side differ: {}", comparison.mixed.at(0));
  constexpr std::size_t few = 4;
  const std::size_t more = fields.size() > few ? fields.size() - few : 0;
  fields.resize(fields.size() - more);
  return fmt::format("not comparable: {}{} {}; declare what is being compared with --factor NAME",
                     fmt::join(fields, ", "), more > 0 ? fmt::format(" and {} more", more) : "",
                     fields.size() == 1 ? "differs" : "differ");
}

void refuse_words(const std::vector<std::string>& words, std::string_view command,
                  const std::vector<std::string>& flags) {
  for (const std::string& word : words)
    throw UsageError(fmt::format("{}: {}", command,
                                 machine::unknown("flag", word.substr(0, word.find('=')), flags)));
}

int run_compare(int argc, char** argv) {
  const Options options = parse(argc, argv);
  if (!options.help.empty()) {
    fmt::print("{}", options.help);
    return harness::accepted;
  }
  if (!options.json_file.empty()) check_writable(options.json_file);
  std::vector<std::string> notes;
  const auto base = harness::read_launches(options.base, "BASE", notes);
  const auto next = harness::read_launches(options.next, "NEW", notes);
  RunComparison comparison = harness::compare(base, next, options.comparing.options);
  comparison.notes = notes;
  fmt::print("{}", harness::text(comparison, options.comparing.all));
  if (!options.json_file.empty()) {
    const std::string json = harness::json(comparison);
    NewFile file(options.json_file);
    file.write(json.data(), json.size());
    file.commit();
    fmt::print("{}\n", options.json_file);
  }
  std::fflush(stdout);
  if (!comparison.comparable) fmt::print(stderr, "shardmark: {}\n", refusal(comparison));
  return options.comparing.exit_code(comparison);
}

}  // namespace suite::comparison

// `shardmark ab`: the same cases under two environments, launched in turn until each is decided.

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <filesystem>
#include <optional>

#include "harness/fingerprint/fingerprint.h"
#include "harness/record/run_json.h"
#include "harness/record/summary.h"
#include "harness/report/figures.h"
#include "harness/run/run.h"
#include "machine/base/clock.h"
#include "machine/base/error.h"
#include "suite/comparison/commands.h"
#include "suite/comparison/comparing.h"
#include "suite/comparison/program.h"

namespace suite::comparison {
namespace {

namespace fs = std::filesystem;
using harness::RunComparison;
using harness::TimeVerdict;
using harness::UsageError;

struct Side {
  char letter = 'a';
  std::string program;
  Assignments environment;
  std::vector<std::string> paths;  // of its launches
};

struct Trial {
  std::array<Side, 2> sides{Side{'a', {}, {}, {}}, Side{'b', {}, {}, {}}};
  std::vector<std::string> run_words;  // those that `shardmark run` gets
  int most_launches = 16;              // a side
  std::string out_dir;
  Comparing comparing;
};

// Returns nothing if the help was asked for.
std::optional<Trial> parse(int argc, char** argv) {
  Trial trial;
  std::array<std::vector<std::string>, 2> environments;
  Options options("ab", "[UNIT...]",
                  "Runs the same cases under two environments, in turn A B B A A B ..., until the "
                  "time of each case is SLOWER, FASTER or EQUIVALENT in B, or --launches are done. "
                  "All other words go to shardmark run: units, axes, --max-seconds.");
  options.pass("", trial.run_words);
  for (std::size_t i = 0; i < 2; ++i) {
    Side& side = trial.sides[i];
    side.program = fs::read_symlink("/proc/self/exe").string();
    options.texts(fmt::format("--{}", side.letter), "NAME=VALUE", environments[i],
                  "environment: \"NCCL_ALGO=Ring NCCL_PROTO=LL\" (default: as it is)", false);
    options.text(fmt::format("--{}-program", side.letter), "FILE", side.program,
                 "another shardmark (default: this one)");
  }
  options.number("--launches", "N", trial.most_launches, 1, 1000,
                 "most launches per side (default: 16)");
  options.text("--out", "DIR", trial.out_dir, "folder of all launches (default: results/ab/TIME)");
  trial.comparing.add_options(options);
  if (!options.parse({argv + 2, argv + argc})) return std::nullopt;
  for (std::size_t i = 0; i < 2; ++i)
    for (const std::string& text : environments[i])
      for (auto& one : parse_assignments(fmt::format("--{}", trial.sides[i].letter), text))
        trial.sides[i].environment.push_back(std::move(one));
  if (trial.out_dir.empty())
    trial.out_dir = fmt::format("results/ab/{:%Y%m%dT%H%M%SZ}", fmt::gmtime(std::time(nullptr)));
  return trial;
}

// Rejects a folder with files, because its launches would mix with ours.
void make_folders(const Trial& trial) {
  std::error_code failed;
  if (fs::exists(trial.out_dir, failed) && !fs::is_empty(trial.out_dir, failed))
    throw UsageError(fmt::format("--out {} is not empty; use a new folder", trial.out_dir));
  for (const Side& side : trial.sides) {
    fs::create_directories(fmt::format("{}/{}", trial.out_dir, side.letter), failed);
    if (failed)
      throw UsageError(fmt::format("cannot write to {}: {}", trial.out_dir, failed.message()));
  }
}

std::vector<std::string> run_words(const Trial& trial, const Side& side) {
  std::vector<std::string> words{side.program, "run"};
  words.insert(words.end(), trial.run_words.begin(), trial.run_words.end());
  return words;
}

// Lets each program check the words before anything is measured.
void check_words(const Trial& trial) {
  for (const Side& side : trial.sides) {
    const std::string log = fmt::format("{}/{}.cases", trial.out_dir, side.letter);
    std::vector<std::string> words = run_words(trial, side);
    words.emplace_back("--benchmark_list_tests=true");
    const int code = run_program(words, side.environment, log);
    if (code == harness::accepted) continue;
    std::string line = last_line_of(log);
    constexpr std::string_view own = "shardmark: ";
    if (line.starts_with(own)) line.erase(0, own.size());
    std::error_code ignored;
    fs::remove_all(trial.out_dir, ignored);
    if (code == harness::usage) throw UsageError(line);
    throw machine::MachineError(fmt::format("{}: {}", side.program, line));
  }
}

// Launchers do not pass on every variable. Checks those that a fingerprint keeps.
void check_arrived(const Side& side, const std::string& path) {
  const harness::Fields fields = harness::read_fields(path, {});
  for (const auto& [name, value] : side.environment) {
    const std::string entry = name + "=" + value;
    const char* const environment[] = {entry.c_str(), nullptr};
    for (const auto& [kept, text] : harness::kept_environment(environment)) {
      const auto found = fields.find("environment." + kept);
      if (found == fields.end() || found->second != text)
        throw machine::MachineError(
            fmt::format("the ranks of {} did not get {}", path, harness::plain(entry)));
    }
  }
}

// Returns 0, or the signal that ended the launch.
int launch(const Trial& trial, Side& side) {
  const std::string path =
      fmt::format("{}/{}/{:03}", trial.out_dir, side.letter, side.paths.size() + 1);
  std::vector<std::string> words = run_words(trial, side);
  words.insert(words.end(), {"--out", path});
  const double start = machine::steady_s();
  const int code = run_program(words, side.environment, path + ".log");
  if (const int signal = signal_passed_on()) return signal;
  if (code != harness::accepted && code != harness::case_failed)
    throw machine::MachineError(
        fmt::format("{} ended with {}: {}", path, code, last_line_of(path + ".log")));
  check_arrived(side, path);
  side.paths.push_back(path);
  fmt::print("{} {}  {}{}\n", static_cast<char>(side.letter - 'a' + 'A'), path,
             harness::duration_text(machine::steady_s() - start),
             code == harness::case_failed ? "  a case failed" : "");
  std::fflush(stdout);
  return 0;
}

RunComparison compare_launches(const Trial& trial, int looks) {
  std::vector<std::string> notes;
  std::array<std::vector<harness::Launch>, 2> launches;
  for (std::size_t i = 0; i < 2; ++i)
    launches[i] = harness::read_launches(trial.sides[i].paths, i == 0 ? "A" : "B", notes);
  harness::CompareOptions compare = trial.comparing.options;
  compare.level /= looks;
  compare.base_label = "A";
  compare.next_label = "B";
  if (trial.sides[0].program != trial.sides[1].program) compare.factors.emplace_back("software");
  for (const Side& side : trial.sides)
    for (const auto& [name, value] : side.environment)
      for (const auto& of_side : launches)
        if (of_side.front().fields.contains("environment." + name))
          compare.factors.push_back("environment." + name);
  RunComparison comparison = harness::compare(launches[0], launches[1], compare);
  comparison.notes = notes;
  return comparison;
}

// Looks at half, three quarters and all of the launches. Each look takes its share of the 5 %, so
// that three looks do not triple the chance of an error.
std::vector<int> looks(int most) {
  std::vector<int> at{(most + 1) / 2, (3 * most + 3) / 4, most};
  at.erase(std::unique(at.begin(), at.end()), at.end());
  return at;
}

}  // namespace

int run_ab(int argc, char** argv) {
  std::optional<Trial> parsed = parse(argc, argv);
  if (!parsed) return harness::accepted;
  Trial& trial = *parsed;
  make_folders(trial);
  check_words(trial);
  const std::vector<int> look_at = looks(trial.most_launches);
  RunComparison comparison;
  for (int pair = 0; pair < trial.most_launches; ++pair) {
    for (const std::size_t turn : {0u, 1u}) {  // A B, B A, A B, …
      if (const int signal =
              launch(trial, trial.sides[(static_cast<std::size_t>(pair) + turn) % 2])) {
        fmt::print("interrupted; shardmark compare {0}/a {0}/b compares what is there\n",
                   trial.out_dir);
        return 128 + signal;
      }
    }
    const bool look = std::ranges::find(look_at, pair + 1) != look_at.end();
    if (pair > 0 && !look) continue;  // the first pair shows whether the sides are comparable
    comparison = compare_launches(trial, static_cast<int>(look_at.size()));
    if (!comparison.comparable || (look && comparison.count(TimeVerdict::inconclusive) == 0)) break;
  }
  const std::string text = harness::text(comparison, trial.comparing.all);
  harness::write_file(trial.out_dir + "/compare.json", harness::json(comparison));
  harness::write_file(trial.out_dir + "/compare.txt", harness::text(comparison, true));
  fmt::print("\n{}", text);
  const harness::Figures figures = harness::figures_of(trial.out_dir, comparison.comparable);
  if (!figures.missing.empty()) fmt::print("figures: {}\n", figures.missing);
  fmt::print("report: {0}/compare.txt, compare.json, figures/\n", trial.out_dir);
  std::fflush(stdout);
  const int code = trial.comparing.exit_code(comparison);
  return comparison.comparable ? code : complain(code, refusal(comparison));
}

}  // namespace suite::comparison

// `shardmark ab`: the same cases under two environments, programs or libraries, launched in turn
// until each is decided.

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>

#include "harness/fingerprint/fingerprint.h"
#include "harness/record/run_json.h"
#include "harness/record/summary.h"
#include "harness/report/figures.h"
#include "harness/run/run.h"
#include "harness/unit/sweep.h"
#include "machine/base/clock.h"
#include "machine/base/error.h"
#include "suite/comparison/commands.h"
#include "suite/comparison/comparing.h"
#include "suite/comparison/library_choice.h"
#include "suite/files/mapped_file.h"
#include "suite/files/shared_object.h"

namespace suite::comparison {
namespace {

namespace fs = std::filesystem;
using harness::RunComparison;
using harness::TimeVerdict;
using harness::UsageError;

using Assignments = std::vector<std::pair<std::string, std::string>>;

std::atomic<pid_t> running{0};
std::atomic<int> passed_on{0};

void pass_on(int signal) {
  passed_on.store(signal);
  if (const pid_t pid = running.load(); pid > 0) kill(pid, signal);
}

bool is_name(std::string_view text) {
  constexpr std::string_view valid =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_0123456789";
  return !text.empty() && text.find_first_not_of(valid) == std::string_view::npos &&
         (text[0] < '0' || text[0] > '9');
}

// Runs in the child, which may only make system calls before exec.
[[noreturn]] void become(char** arguments, char** environment, int log) {
  setpgid(0, 0);  // a terminal's Ctrl-C reaches it once, through pass_on
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  const int nothing = open("/dev/null", O_RDONLY);
  dup2(nothing, STDIN_FILENO);
  dup2(log, STDOUT_FILENO);
  dup2(log, STDERR_FILENO);
  environ = environment;
  execvp(arguments[0], arguments);
  const char* why = std::strerror(errno);
  for (const char* part :
       {"shardmark: cannot run ", static_cast<const char*>(arguments[0]), ": ", why, "\n"})
    [[maybe_unused]] const auto wrote = write(STDERR_FILENO, part, std::strlen(part));
  _exit(3);
}

// Parses "NCCL_ALGO=Ring NCCL_PROTO=LL". `flag` is its name in messages. Throws UsageError naming a
// word that is not NAME=VALUE.
Assignments parse_assignments(std::string_view flag, const std::string& text) {
  Assignments all;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const std::size_t equals = word.find('=');
    if (equals == std::string::npos || !is_name(std::string_view(word).substr(0, equals)))
      throw UsageError(fmt::format("{} is '{}'; expected NAME=VALUE", flag, harness::plain(word)));
    all.emplace_back(word.substr(0, equals), word.substr(equals + 1));
  }
  return all;
}

// Runs words[0] with this environment on top of ours, standard output and error into `log`, and
// returns its exit code (128 + signal if a signal ended it). Passes SIGINT and SIGTERM on to it.
// Throws machine::MachineError if it cannot be started.
int run_program(const std::vector<std::string>& words, const Assignments& environment,
                const std::string& log) {
  std::map<std::string, std::string> variables;
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view text = *entry;
    const std::size_t name = std::min(text.find('='), text.size());
    variables.try_emplace(std::string(text.substr(0, name)), text.substr(name));
  }
  for (const auto& [name, value] : environment) variables[name] = "=" + value;
  std::vector<std::string> arguments = words, entries;
  for (const auto& [name, value] : variables) entries.push_back(name + value);
  const auto pointers = [](std::vector<std::string>& texts) {
    std::vector<char*> all;
    for (std::string& text : texts) all.push_back(text.data());
    all.push_back(nullptr);
    return all;
  };
  std::vector<char*> argument_pointers = pointers(arguments), entry_pointers = pointers(entries);
  const int file = open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0)
    throw machine::MachineError(fmt::format("cannot write to {}: {}", log, std::strerror(errno)));

  const pid_t child = fork();
  if (child == 0) become(argument_pointers.data(), entry_pointers.data(), file);
  const int error = errno;
  close(file);
  if (child < 0)
    throw machine::MachineError(fmt::format("cannot start {}: {}", words[0], std::strerror(error)));
  running.store(child);
  struct sigaction action {};
  action.sa_handler = pass_on;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  running.store(0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Returns a log's last line without control characters; empty if there is none.
std::string last_line_of(const std::string& log) {
  std::ifstream file(log);
  std::string line, last;
  while (std::getline(file, line))
    if (line.find_first_not_of(" \t\r") != std::string::npos) last = line;
  return harness::plain(last);
}

struct Side {
  char letter = 'a';
  std::string program;
  Assignments environment;
  std::vector<std::string> paths;        // run directories of its launches
  std::vector<std::string> wanted;       // LIBRARY=PATH
  std::vector<LibraryChoice> libraries;  // from `wanted`
};

struct Trial {
  std::array<Side, 2> sides{Side{'a', {}, {}, {}, {}, {}}, Side{'b', {}, {}, {}, {}, {}}};
  std::vector<std::string> run_words;  // passed to `shardmark run`
  int most_launches = 16;              // per side
  std::string out_dir;
  Comparing comparing;
};

// Returns no value if the user asked for the help.
std::optional<Trial> parse(int argc, char** argv) {
  Trial trial;
  std::array<std::vector<std::string>, 2> environments;
  Options options("ab", "[UNIT...]",
                  "Runs the same cases under two environments, programs or libraries, in turn A B "
                  "B A A B ..., until the time of each case is SLOWER, FASTER or EQUIVALENT in B, "
                  "or --launches are done. "
                  "All other words go to shardmark run: units, axes, --max-seconds.");
  options.pass("", trial.run_words);
  for (std::size_t i = 0; i < 2; ++i) {
    Side& side = trial.sides[i];
    side.program = fs::read_symlink("/proc/self/exe").string();
    options.texts(fmt::format("--{}", side.letter), "NAME=VALUE", environments[i],
                  "environment: \"NCCL_ALGO=Ring NCCL_PROTO=LL\" (default: unchanged)", false);
    options.text(fmt::format("--{}-program", side.letter), "FILE", side.program,
                 "another shardmark (default: this one)");
    options.texts(fmt::format("--{}-library", side.letter), "LIBRARY=PATH", side.wanted,
                  fmt::format("load this file, or the one in this folder: nccl=/opt/nccl/lib; "
                              "repeatable; {} (default: unchanged)",
                              library_names()),
                  false);
  }
  options.number("--launches", "N", trial.most_launches, 1, 1000,
                 "maximum launches per side (default: 16)");
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

// Reads the libraries of both sides and adds them to the environments, before anything is measured.
void choose_libraries(Trial& trial) {
  for (Side& side : trial.sides) {
    if (side.wanted.empty()) continue;
    const std::string flag = fmt::format("--{}-library", side.letter);
    std::optional<std::vector<std::string>> loaded;
    if (is_elf(side.program)) {  // a script loads the libraries of its interpreter
      const std::string log = fmt::format("{}/{}.libraries", trial.out_dir, side.letter);
      Assignments traced = side.environment;
      traced.emplace_back("LD_TRACE_LOADED_OBJECTS", "1");
      run_program({side.program}, traced, log);
      loaded = loaded_sonames(std::string(MappedFile(log).text()));
    }
    for (const std::string& text : side.wanted)
      side.libraries.push_back(choose_library(flag, text, side.program, loaded));
    check_once(flag, side.libraries);
    const auto given = std::ranges::find(side.environment.rbegin(), side.environment.rend(),
                                         "LD_PRELOAD", &Assignments::value_type::first);
    const char* const ours = std::getenv("LD_PRELOAD");
    side.environment.emplace_back(
        "LD_PRELOAD", preload(side.libraries, given != side.environment.rend() ? given->second
                                              : ours                           ? ours
                                                                               : ""));
  }
  for (const LibraryChoice& a : trial.sides[0].libraries)
    for (const LibraryChoice& b : trial.sides[1].libraries)
      if (a.name == b.name && a.file == b.file)
        throw UsageError(fmt::format(
            "--a-library and --b-library have the same {}: {}; give one of them another file",
            a.name, a.file));
}

// Lets each program check its arguments before the first measurement.
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
    if (code == harness::usage) throw UsageError(line);
    throw machine::MachineError(fmt::format("{}: {}", side.program, line));
  }
}

// Returns the file that the ranks of a launch loaded, without symbolic links; empty if they loaded
// no such file.
std::string loaded_file(const harness::Fields& fields, const LibraryChoice& library) {
  const auto found = fields.find(library.field());
  std::error_code failed;
  return found == fields.end() ? "" : fs::weakly_canonical(found->second, failed).string();
}

// Throws if the ranks of a launch did not get a variable that a fingerprint keeps, or loaded other
// files of the libraries. Launchers do not pass on every variable.
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
  for (const LibraryChoice& library : side.libraries)
    if (const std::string file = loaded_file(fields, library); file != library.file)
      throw machine::MachineError(fmt::format("the ranks of {} loaded {} as {}, not {}", path,
                                              file.empty() ? "nothing" : harness::plain(file),
                                              library.name, library.file));
}

// Rejects a comparison of a library with itself, which would pass as "no difference".
void check_different(const Trial& trial, const std::array<std::vector<harness::Launch>, 2>& of) {
  for (const Side& side : trial.sides)
    for (const LibraryChoice& library : side.libraries)
      if (loaded_file(of[0].front().fields, library) == loaded_file(of[1].front().fields, library))
        throw UsageError(
            fmt::format("both sides loaded {} from {}; give --{}-library {} another file",
                        library.name, library.file, side.letter, library.name));
}

// Returns 0, or the signal that ended the launch.
int launch(const Trial& trial, Side& side) {
  const std::string path =
      fmt::format("{}/{}/{:03}", trial.out_dir, side.letter, side.paths.size() + 1);
  std::vector<std::string> words = run_words(trial, side);
  words.insert(words.end(), {"--out", path});
  const double start = machine::steady_s();
  const int code = run_program(words, side.environment, path + ".log");
  if (const int signal = passed_on.load()) return signal;
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
  check_different(trial, launches);
  harness::CompareOptions compare = trial.comparing.options;
  compare.level /= looks;
  compare.base_label = "A";
  compare.next_label = "B";
  if (trial.sides[0].program != trial.sides[1].program) compare.factors.emplace_back("software");
  for (const Side& side : trial.sides)
    for (const LibraryChoice& library : side.libraries) compare.factors.push_back(library.factor);
  for (const Side& side : trial.sides)
    for (const auto& [name, value] : side.environment)
      for (const auto& of_side : launches)
        if (of_side.front().fields.contains("environment." + name))
          compare.factors.push_back("environment." + name);
  RunComparison comparison = harness::compare(launches[0], launches[1], compare);
  comparison.notes = notes;
  return comparison;
}

// Tests after half, three quarters and all of the launches. Each test gets its share of the 5 %, so
// that three tests do not triple the chance of an error.
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
  try {
    choose_libraries(trial);
    check_words(trial);
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(trial.out_dir, ignored);
    throw;
  }
  const std::vector<int> look_at = looks(trial.most_launches);
  RunComparison comparison;
  for (int pair = 0; pair < trial.most_launches; ++pair) {
    for (const std::size_t turn : {0u, 1u}) {  // A B, B A, A B, …
      if (const int signal =
              launch(trial, trial.sides[(static_cast<std::size_t>(pair) + turn) % 2])) {
        fmt::print("interrupted; shardmark compare {0}/a {0}/b compares the finished launches\n",
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
  return trial.comparing.end(comparison);
}

}  // namespace suite::comparison

// `shardmark manual`: the manual page, from the tables of commands, options and units.

#include <fmt/format.h>

#include <string>

#include "harness/fingerprint/build_info.h"
#include "harness/run/run.h"
#include "harness/unit/unit.h"
#include "suite/options/options.h"
#include "suite/program/commands.h"

namespace suite {
namespace {

constexpr std::pair<int, std::string_view> exit_codes[] = {
    {harness::accepted, "accepted"},
    {harness::case_failed,
     "an oracle or floor failed, or faults were injected; compare, ab: a case became slower or a "
     "number changed"},
    {harness::usage,
     "the command line or a configuration is wrong; compare: the runs are not comparable"},
    {harness::environment,
     "a library, a device or the file system is missing or failed, or all communication was "
     "skipped"},
    {harness::rank_lost, "a rank hung, died or broke its GPU; finished records are kept"},
    {7, "collective: wrong values, or less bandwidth than required"},
    {130, "interrupted by Ctrl-C; finished records are kept"},
    {143, "interrupted by SIGTERM; finished records are kept"},
};

constexpr std::pair<std::string_view, std::string_view> variables[] = {
    {"SHARDMARK_MPIEXEC", "starts the ranks, instead of the launcher in PATH"},
    {"SHARDMARK_FIGURES", "draws the figures of a report, instead of the installed figures.py"},
};

void entry(std::string_view name, std::string_view text) {
  fmt::print(".TP\n\\fB{}\\fR\n{}\n", roff(name), roff(text));
}

}  // namespace

int run_manual(int argc, char** argv) {
  Options options("manual", "", "Prints the manual page: shardmark manual | man -l -");
  if (!options.parse({argv + 2, argv + argc})) return harness::accepted;
  fmt::print(
      ".TH SHARDMARK 1 \"\" \"shardmark {}\" \"User Commands\"\n"
      ".SH NAME\n"
      "shardmark \\- {}\n"
      ".SH SYNOPSIS\n"
      ".B shardmark\n"
      ".I COMMAND\n"
      "[OPTIONS]\n"
      ".SH DESCRIPTION\n"
      "{}\n",
      harness::build_info().version, roff(program_name), roff(program_about));
  fmt::print(".SH COMMANDS\n");
  for (const Command& command : commands()) entry(command.name, command.about);
  fmt::print(".SH OPTIONS\n");
  for (const Command& command : commands()) {
    std::string program = "shardmark", name(command.name), help(Options::roff_help);
    char* words[] = {program.data(), name.data(), help.data(), nullptr};
    command.run(3, words);
  }
  fmt::print(".SH UNITS\nshardmark list UNIT lists the axes of a unit. Axis names are options.\n");
  for (const harness::Family* unit : harness::families()) entry(unit->name(), unit->about());
  fmt::print(".SH EXIT STATUS\n");
  for (const auto& [code, meaning] : exit_codes) entry(std::to_string(code), meaning);
  fmt::print(".SH ENVIRONMENT\n");
  for (const auto& [variable, meaning] : variables) entry(variable, meaning);
  fmt::print(".SH SEE ALSO\n.BR mpiexec (1)\n");
  return harness::accepted;
}

}  // namespace suite

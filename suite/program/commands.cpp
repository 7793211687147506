#include "suite/program/commands.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "harness/run/run.h"
#include "machine/base/names.h"
#include "suite/checkpoint/checkpoint_command.h"
#include "suite/comparison/commands.h"
#include "suite/expectation/cluster_command.h"
#include "suite/options/options.h"

namespace suite {
namespace {

constexpr Command all[] = {
    {"run", "measure and judge units", run_units},
    {"list", "units, their oracles and axes", run_list},
    {"collective", "measure one collective with the options and the table of nccl-tests",
     nccl_tests::run_collective},
    {"compare", "compare launches before and after a change", comparison::run_compare},
    {"ab", "compare two environments, launched in turn", comparison::run_ab, "run"},
    {"history", "keep runs over time and find changes", comparison::run_history},
    {"plan", "memory of a training run, from ds_config.json or Megatron's arguments",
     configuration::run_plan},
    {"predict", "time of a training step on a cluster, before it runs", run_predict},
    {"cluster", "measure a cluster file for predict from runs, or draw one", run_cluster},
    {"recipes", "published configurations, shrunk to a small machine: list, show, run, compare",
     run_recipes},
    {"scale", "run units while one degree grows with the ranks", run_units},
    {"report", "write report.html and junit.xml of a run", run_report},
    {"health", "ranks, hosts and links to drain after a run: exit code 0 OK, 1 WARN, 2 CRITICAL",
     run_health},
    {"checkpoint",
     "show a checkpoint of a training, or convert it from or to Hugging Face's format",
     run_checkpoint},
    {"data", "write the bytes of a text as Megatron's token files", run_data},
    {"version", "version, commit, compiler and libraries", run_version},
    {"manual", "print the manual page", run_manual},
    {"completion", "print the completion of a shell: bash, zsh or fish", run_completion},
};

int print_help() {
  std::vector<std::pair<std::string, std::string>> rows;
  for (const Command& command : all) rows.emplace_back(command.name, command.about);
  fmt::print(
      "Usage: shardmark COMMAND [OPTIONS]\n\n"
      "{}\n\n"
      "Commands:\n{}\n"
      "shardmark COMMAND --help lists the options of a command.\n",
      program_about, two_columns(rows));
  return harness::accepted;
}

}  // namespace

std::span<const Command> commands() { return all; }

const Command* find_command(std::string_view name) {
  const auto* command = std::ranges::find(all, name, &Command::name);
  return command == std::end(all) ? nullptr : command;
}

int run_command(int argc, char** argv) {
  const std::string_view word = argc > 1 ? argv[1] : "--help";
  if (word == "--help" || word == "-h" || word == "help") return print_help();
  if (const Command* command = find_command(word == "--version" ? "version" : word))
    return command->run(argc, argv);
  std::vector<std::string> names;
  for (const Command& one : all) names.emplace_back(one.name);
  throw harness::UsageError(machine::unknown("command", word, names));
}

}  // namespace suite

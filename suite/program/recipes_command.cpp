// `shardmark recipes`: published configurations, shrunk to a small machine.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "harness/record/run_json.h"
#include "harness/run/run.h"
#include "machine/base/names.h"
#include "machine/world/mpi_world.h"
#include "suite/files/mapped_file.h"
#include "suite/options/options.h"
#include "suite/program/commands.h"
#include "suite/program/run_command_line.h"
#include "suite/recipes/check.h"
#include "suite/recipes/recipe.h"
#include "suite/recipes/strategies.h"

namespace suite {
namespace {

using recipes::Checked;
using recipes::Recipe;

// The options of `compare` that every strategy shares; the others are those of `run`.
constexpr std::string_view common_axes[] = {"--model", "--dtype", "--transport", "--seq-length"};

std::string one_recipe(const std::vector<std::string>& words) {
  if (words.size() < 2) reject("recipes {} requires NAME; shardmark recipes list", words[0]);
  return words[1];
}

int list(const std::vector<std::string>& words) {
  if (words.size() > 1) reject("unexpected argument '{}'", words[1]);
  const std::string folder = recipes::recipes_folder();
  int all = 0, running = 0;
  for (const std::string& name : recipes::recipe_names(folder)) {
    const Recipe recipe = recipes::read_recipe(folder, name);
    const Checked checked = recipes::check(recipe);
    ++all;
    running += checked.why_not.empty();
    const std::string here =
        checked.why_not.empty() ? fmt::format("runs on {} ranks", recipe.small.ranks)
        : recipe.needs.empty()  ? fmt::format("does not run: {}", checked.why_not)
                               : fmt::format("does not run yet, because it needs {}", recipe.needs);
    fmt::print("{}\n{}", recipe.name,
               two_columns(
                   {{"about", recipe.about},
                    {"published", fmt::format("{:.1f}B parameters; GPUs {}, {:.1f} of {:.0f} GB by "
                                              "the papers' formulas",
                                              checked.parameters / 1e9, recipe.gpus,
                                              recipes::planned_bytes(checked.plan) / 1e9,
                                              recipe.gpu_memory / 1e9)},
                    {"here", here}}));
  }
  fmt::print("{} recipes: {} run here, {} do not yet\n", all, running, all - running);
  return harness::accepted;
}

int show(const std::vector<std::string>& words) {
  const Recipe recipe = recipes::read_recipe(recipes::recipes_folder(), one_recipe(words));
  if (words.size() > 3) reject("unexpected argument '{}'", words[3]);
  const Checked checked = recipes::check(recipe);
  fmt::print("{}: {}\n", recipe.name, recipe.about);
  for (const std::string& source : recipe.sources) fmt::print("  {}\n", source);
  fmt::print("  files: {}\n", recipe.folder);
  if (!recipe.changed.empty()) fmt::print("\nchanged keys of the published files\n");
  const auto value = [](const recipes::Change& change) {
    return change.value.is_null() ? std::string("left out") : change.value.dump();
  };
  for (const recipes::Change& change : recipe.changed)
    fmt::print("  {} {}: {}\n", change.key, value(change), change.why);
  fmt::print("\nshrunk: {} ranks{}{}\n", recipe.small.ranks,
             recipe.small.model.empty() ? "" : ", model ", recipe.small.model);
  for (const recipes::Change& change : recipe.small.changed)
    fmt::print("  {} {}\n", change.key, value(change));
  if (!checked.why_not.empty()) fmt::print("does not run yet: {}\n", checked.why_not);
  fmt::print("\n{}", text(checked.plan));
  if (words.size() == 3) {
    recipes::write_files(recipe, recipes::Size::published, words[2] + "/published");
    recipes::write_files(recipe, recipes::Size::small, words[2] + "/small");
    fmt::print("\n{0}/published, {0}/small\n", words[2]);
  }
  return harness::accepted;
}

// Returns the folder of --out, which it adds if it is not given.
std::string chosen_out(std::vector<std::string>& given) {
  for (std::size_t i = 0; i < given.size(); ++i)
    if (given[i] == "--out" && i + 1 < given.size())
      return given[i + 1];
    else if (given[i].starts_with("--out="))
      return given[i].substr(6);
  given.insert(given.end(), {"--out", default_out_dir()});
  return given.back();
}

int run_words(std::vector<std::string> words) {
  std::string program = "shardmark";
  std::vector<char*> argv{program.data()};
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  return run_units(static_cast<int>(words.size()) + 1, argv.data());
}

// Writes the shrunk files into the run's folder and runs them as `shardmark run` does.
int run(const std::vector<std::string>& words) {
  if (machine::under_launcher())
    reject("recipes run starts its own ranks; under mpiexec or srun use the files of recipes show");
  const Recipe recipe = recipes::read_recipe(recipes::recipes_folder(), one_recipe(words));
  if (const std::string why = recipes::check(recipe).why_not; !why.empty())
    reject("{} does not run: {}", recipe.name, why);
  std::vector<std::string> given(words.begin() + 2, words.end());
  const std::string out = chosen_out(given);
  const auto files = recipes::write_files(recipe, recipes::Size::small, out + "/recipe");
  const std::vector<std::string> all = recipes::run_words(recipe, files, given);
  fmt::print("{}: {}\nshardmark {}\n", recipe.name, recipe.about, fmt::join(all, " "));
  std::fflush(stdout);
  return run_words(all);
}

// Runs a model by every strategy and prints their table.
int compare(const std::vector<std::string>& words) {
  if (machine::under_launcher())
    reject(
        "recipes compare starts its own ranks; under mpiexec or srun run the cases that it names");
  recipes::Axes common{{"model", "small"}};
  std::vector<std::string> given;
  for (std::size_t i = 1; i < words.size(); ++i) {
    const std::size_t equal = std::min(words[i].find('='), words[i].size());
    const std::string flag = words[i].substr(0, equal);
    const bool is_axis = std::ranges::find(common_axes, flag) != std::end(common_axes);
    if (!is_axis) {
      given.push_back(words[i]);
      continue;
    }
    if (equal == words[i].size() && i + 1 == words.size()) reject("{} requires a value", flag);
    const std::string value = equal < words[i].size() ? words[i].substr(equal + 1) : words[++i];
    std::erase_if(common, [&](const auto& axis) { return "--" + axis.first == flag; });
    common.emplace_back(flag.substr(2), value);
  }
  const std::string out = chosen_out(given);
  std::vector<std::string> all{"run"};
  for (const recipes::Strategy& strategy : recipes::strategies())
    all.push_back(recipes::case_name(strategy, common));
  all.insert(all.end(), given.begin(), given.end());
  recipes::make_folder(out);
  harness::write_file(out + "/" + recipes::strategies_file, recipes::strategies_json(common));
  const int code = run_words(all);
  const bool has_run = std::filesystem::exists(out + "/run.json");  // not if cases are only listed
  if (has_run && (code == harness::accepted || code == harness::case_failed))
    fmt::print("\n{}", recipes::strategies_table(harness::read_run(out).records, common));
  return code;
}

struct Action {
  std::string_view name, arguments, about;
  int (*run)(const std::vector<std::string>& words);  // words[0]: the action
};
constexpr Action actions[] = {
    {"list", "", "all recipes, with the memory of their published size", list},
    {"show", "NAME [DIR]", "source, changes and plan of one; writes its files into DIR", show},
    {"run", "NAME [OPTIONS OF RUN]", "runs its shrunk form with all oracles", run},
    {"compare", "[OPTIONS OF RUN]", "one model by every strategy: memory, bytes, time, bubble",
     compare},
};

std::vector<std::string> action_names() {
  std::vector<std::string> names;
  for (const Action& action : actions) names.emplace_back(action.name);
  return names;
}

}  // namespace

int run_recipes(int argc, char** argv) {
  std::vector<std::string> words;
  Options options("recipes", "ACTION [NAME]",
                  "Runs published configurations in a form that fits a small machine.");
  options.pass_from_first_argument(words);
  options.argument_choices(action_names);
  std::vector<std::pair<std::string, std::string>> rows;
  for (const Action& action : actions)
    rows.emplace_back(
        fmt::format("{}{}{}", action.name, action.arguments.empty() ? "" : " ", action.arguments),
        action.about);
  options.footer("Actions:\n" + two_columns(rows));
  if (!options.parse({argv + 2, argv + argc})) return harness::accepted;
  if (words.empty()) reject("recipes requires ACTION: {}", fmt::join(action_names(), ", "));
  const auto* action = std::ranges::find(actions, words[0], &Action::name);
  if (action == std::end(actions))
    throw harness::UsageError(machine::unknown("action", printable(words[0]), action_names()));
  return action->run(words);
}

}  // namespace suite

#include "suite/recipes/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "machine/base/error.h"
#include "suite/configuration/models.h"
#include "suite/plan/model_shape.h"
#include "suite/training_step/configured_cases.h"

namespace suite::recipes {
namespace {

namespace fs = std::filesystem;

// A model that this program does not know has only its published number of parameters.
configuration::Sources with_known_model(configuration::Sources sources, const Recipe& recipe) {
  const std::vector<std::string>& names = model_names();
  if (sources.model.empty() || std::ranges::find(names, sources.model) != names.end())
    return sources;
  sources.model.clear();
  sources.parameters = recipe.parameters;
  return sources;
}

std::string why_not(const Recipe& recipe, configuration::Sources files) {
  harness::PlanRequest request{.flags = {{"ranks", std::to_string(recipe.small.ranks)}}};
  if (!files.model.empty()) request.flags["model"] = files.model;
  files.model.clear();
  try {
    const ConfiguredCases planned = configured_cases(files, {"gpt_step"}, request);
    return planned.cases.empty() ? "it has no case" : "";
  } catch (const harness::UsageError& error) {
    return error.what();
  }
}

}  // namespace

ScratchFolder::ScratchFolder() {
  std::error_code failed;
  path_ = (fs::temp_directory_path(failed) / "shardmark-recipe-XXXXXX").string();
  if (failed || !mkdtemp(path_.data()))
    throw machine::MachineError(
        fmt::format("cannot make a temporary folder: {}", std::strerror(errno)));
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

Checked check(const Recipe& recipe) {
  const ScratchFolder scratch;
  // The path of the scratch folder means nothing to a reader.
  const auto named = [&](std::string text, const std::string& form) {
    const std::string folder = scratch.path() + "/" + form + "/";
    for (std::size_t at = 0; (at = text.find(folder)) != std::string::npos;)
      text.replace(at, folder.size(), recipe.name + "/");
    return text;
  };
  Checked checked;
  try {
    const auto published = with_known_model(
        write_files(recipe, Size::published, scratch.path() + "/published"), recipe);
    checked.plan = make_plan(resolve(published), {.gpu_memory = recipe.gpu_memory});
  } catch (const harness::UsageError& error) {
    throw harness::UsageError(named(error.what(), "published"));
  }
  checked.parameters = configuration::parameters_of(checked.plan.resolved.config.model);
  checked.why_not =
      named(why_not(recipe, write_files(recipe, Size::small, scratch.path() + "/small")), "small");
  return checked;
}

double planned_bytes(const configuration::Plan& plan) {
  const auto row = std::ranges::find_if(plan.rows, [](const configuration::PlanRow& one) {
    return one.asked_for && one.holding.counting == configuration::Counting::paper;
  });
  return row == plan.rows.end() ? 0 : row->held.gpu.total();
}

}  // namespace suite::recipes

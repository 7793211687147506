#include "suite/training_step/configured_cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <stdexcept>
#include <utility>

#include "machine/base/names.h"
#include "suite/trainer/validation.h"

namespace suite {
namespace {

using configuration::Key;
using configuration::Resolved;
using configuration::Sources;
using harness::AxisFlags;
using harness::UsageError;

const Key& key_of(const std::string& axis) {
  const Key* key = configuration::find_key(&Key::axis, axis);
  if (key) return *key;
  std::vector<std::string> names;
  for (const Key& one : configuration::keys())
    if (!one.axis.empty()) names.emplace_back(one.axis);
  throw UsageError(machine::unknown("axis", axis, names));
}

std::vector<std::string> values_of(const std::string& axis, const std::string& text) {
  if (axis == "ranks") return harness::axis_texts<int>(axis, text);
  const Key& key = key_of(axis);
  if (key.divide) return key.divide(text);
  TrainingConfig any;
  return key.unset.empty() && key.field(any).kind() == configuration::Kind::whole
             ? harness::axis_texts<int>(axis, text)
             : harness::axis_texts<std::string>(axis, text);
}

// Returns all combinations of the flags' values. The last flag varies fastest.
std::vector<AxisFlags> combinations(const AxisFlags& flags) {
  std::vector<AxisFlags> all{{}};
  for (const auto& [axis, text] : flags) {
    std::vector<AxisFlags> longer;
    for (const AxisFlags& one : all)
      for (const std::string& value : values_of(axis, text)) {
        longer.push_back(one);
        longer.back()[axis] = value;
      }
    all = std::move(longer);
  }
  return all;
}

Resolved resolved_of(Sources sources, const AxisFlags& axes) {
  const std::string file = sources.file();
  sources.axes = axes;
  sources.gpus = std::stoll(axes.at("ranks"));
  if (const auto model = axes.find("model"); model != axes.end())
    sources.model = model->second;
  else if (sources.megatron_file.empty())
    sources.model = "small";
  Resolved resolved = resolve(sources);
  if (!resolved.config.model.has_shape())
    throw UsageError(fmt::format("{} specifies no model's shape; give --model", file));
  if (const std::string why = configuration::why_no_step(resolved.config); !why.empty())
    throw UsageError(fmt::format("{}: {}", file, why));
  try {
    validate(resolved.config);
  } catch (const std::invalid_argument& error) {
    throw UsageError(fmt::format("{}: {}", file, error.what()));
  }
  return resolved;
}

// Returns the axes of the configuration's only case.
AxisFlags flags_of(TrainingConfig config, const AxisFlags& given, const std::string& model) {
  AxisFlags flags;
  for (const Key& key : configuration::keys())
    if (!key.axis.empty()) flags[std::string(key.axis)] = axis_text(key, config);
  flags["model"] = model;
  flags["model-args"] = given.contains("model-args") ? given.at("model-args") : "none";
  flags["ranks"] = given.at("ranks");
  return flags;
}

}  // namespace

namespace {

// Returns the cases over the transports between CUDA devices that the configuration supports.
ConfiguredCases cases_between_devices(const Sources& sources, const std::vector<std::string>& units,
                                      harness::PlanRequest request) {
  ConfiguredCases all;
  for (const machine::Transport transport : harness::usual_transports(request.device)) {
    request.flags["transport"] = name(transport);
    try {
      ConfiguredCases some = configured_cases(sources, units, request);
      if (all.cases.empty()) all.resolved = std::move(some.resolved);
      std::ranges::move(some.cases, std::back_inserter(all.cases));
    } catch (const UsageError&) {
      // Without cases, the caller reports its own reason.
    }
  }
  return all;
}

}  // namespace

ConfiguredCases configured_cases(const Sources& sources, const std::vector<std::string>& units,
                                 harness::PlanRequest request) {
  if (request.device == machine::Device::Kind::cuda && !request.flags.contains("transport"))
    if (ConfiguredCases all = cases_between_devices(sources, units, request); !all.cases.empty())
      return all;
  const std::string file = sources.file();
  const std::vector<std::string> known{"gpt_step", "training_speed"};
  if (units.size() != 1 || std::ranges::find(known, units.front()) == known.end())
    throw UsageError(
        fmt::format("{} configures gpt_step or training_speed; name one of them", file));
  const AxisFlags given = request.flags;
  if (!given.contains("ranks"))
    throw UsageError(fmt::format("{} requires the number of ranks; give --ranks N", file));
  ConfiguredCases all;
  std::set<std::pair<std::string, std::string>> taken;
  std::vector<std::pair<AxisFlags, std::string>> refused;
  for (const AxisFlags& axes : combinations(given)) {
    try {
      Resolved resolved = resolved_of(sources, axes);
      const bool named = axes.contains("model") || sources.megatron_file.empty();
      const std::string model = axes.contains("model") ? axes.at("model") : "small";
      request.flags = flags_of(resolved.config, axes, named ? model : "configured");
      request.configuration = resolved.config;
      for (harness::PlannedCase& planned : harness::plan_cases(units, request))
        all.cases.push_back(std::move(planned));
      if (taken.empty()) all.resolved = std::move(resolved);
      taken.insert(axes.begin(), axes.end());
    } catch (const UsageError& error) {
      refused.emplace_back(axes, error.what());
    }
  }
  // A value without any case is an error, as without a file.
  for (const auto& [axes, why] : refused)
    if (!std::ranges::all_of(axes, [&](const auto& axis) { return taken.contains(axis); }))
      throw UsageError(why);
  return all;
}

}  // namespace suite

// `shardmark list`: the units; with UNIT its axes, in each profile.

#include <fmt/format.h>

#include "harness/run/run.h"
#include "harness/unit/unit.h"
#include "suite/options/options.h"
#include "suite/program/axes_text.h"
#include "suite/program/commands.h"

namespace suite {

int run_list(int argc, char** argv) {
  std::vector<std::string> units;
  std::vector<harness::Profile> profiles;
  Options options("list", "[UNIT...]",
                  "Lists all units with their oracles; with UNIT, its axes in each profile.");
  options.arguments("UNIT", units, "a unit");
  options.read(
      "--profile", "NAME",
      [&profiles](const std::string& text) { profiles.push_back(harness::parse_profile(text)); },
      "only this profile: quick, acceptance or paper", Options::Times::each);
  bool markdown = false;
  options.flag("--markdown", markdown, "a page of the documentation");
  if (!options.parse({argv + 2, argv + argc})) return harness::accepted;
  if (markdown) {
    fmt::print("{}", units_page(harness::families(units)));
    return harness::accepted;
  }
  if (profiles.empty())
    profiles = {harness::Profile::quick, harness::Profile::acceptance, harness::Profile::paper};
  for (const harness::Family* unit : harness::families(units)) {
    fmt::print("{}", unit_summary(*unit));
    if (units.empty()) continue;
    for (const harness::Profile profile : profiles) fmt::print("{}", unit_slices(*unit, profile));
    fmt::print("{}", unit_axes(*unit, profiles));
  }
  if (units.empty()) fmt::print("shardmark list UNIT lists the axes of a unit.\n");
  return harness::accepted;
}

}  // namespace suite

#pragma once
// The fields that must agree to compare two runs, as a flat list, and the declared differences.
//
//   Fields fields = read_fields("results/runs/today", run);  // "software.nccl.loaded": "2.28.3"
//   Factors factors({"nccl"});                               // may differ
//   for (const Difference& d : differences(base, next, factors)) …

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "harness/record/run_json.h"
#include "harness/unit/unit.h"

namespace harness {

// Convert the axes and the name of a case to the current form (case_name). Runs of version 0.1
// wrote some booleans as 0 and 1, and all axes into the name:
// "layer_norm/ranks:2/sequence-parallel:1/…" becomes "layer_norm/ranks:2/sequence-parallel:on".
AxisValues current_axes(AxisValues axes);
std::string current_case_name(const std::string& name);

// By dotted name: those of environment.json (host, binding, hardware.…, software.…, environment.…,
// options.…), `ranks`, and from run.json `context.…` for the clocks and `configuration.…`. If ranks
// differ, a field has the values of all in rank order: "node-a x4, node-b x4". Variables by which a
// launcher identifies one launch are left out; hosts and binding contain their relevant part.
using Fields = std::map<std::string, std::string>;

// Throws UsageError with the file if environment.json or run.json's configuration is missing, cut
// off or invalid.
Fields read_fields(const std::string& directory, const RunFile& run);

struct Difference {
  std::string field;
  std::string base, next;  // "absent" if a side lacks the field
  bool declared = false;
};

// Names of fields that may differ. Each is a field's whole name, or one or more neighbouring parts
// of it: "nccl" covers software.nccl.loaded and its siblings, "NCCL_ALGO" environment.NCCL_ALGO.
class Factors {
 public:
  explicit Factors(std::vector<std::string> names) : names_(std::move(names)) {}
  bool declare(std::string_view field) const;
  // Exactly this name: of an axis, or "numbers" or "timing".
  bool name(std::string_view name) const;
  // Throws UsageError for a name that matches no field of `known` and is not in `others`.
  void check(const std::vector<const Fields*>& known, const std::set<std::string>& others) const;

 private:
  std::vector<std::string> names_;
};

// Ordered by name. Clocks differ if they are more than 1 % apart, because systems report momentary
// values.
std::vector<Difference> differences(const Fields& base, const Fields& next, const Factors& factors);

// Throws UsageError with the fields in which the run differs from a launch with this
// environment.json and configuration (run.json's, or empty): that launch cannot continue it.
// Ignores the clocks.
void refuse_another(const std::string& directory, const RunFile& run,
                    const std::string& environment, const std::string& configuration);

}  // namespace harness

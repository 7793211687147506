#pragma once
// What makes two runs comparable, as a flat list of fields, and which of them were said to differ.
//
//   Fields fields = read_fields("results/runs/today", run);  // "software.nccl.loaded": "2.28.3"
//   Factors factors({"nccl"});                               // what is being compared
//   for (const Difference& d : differences(base, next, factors)) …

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "harness/record/run_json.h"
#include "harness/unit/sweep.h"

namespace harness {

// The name and the axes of a case as runs write them now. Runs of version 0.1 wrote some booleans
// as 0 and 1: "layer_norm/…/sequence-parallel:1" becomes "layer_norm/…/sequence-parallel:on".
std::string current_case_name(const std::string& name);
AxisValues current_axes(AxisValues axes);

// By dotted name: environment.json's (host, binding, hardware.…, software.…, environment.…,
// options.…), `ranks`, and of run.json `context.…` for the clocks and `configuration.…`. Where
// ranks differ, the values of all, in their order: "node-a x4, node-b x4". Left out are the
// variables by which a launcher tells one launch from the next; hosts and binding say what of them
// matters.
using Fields = std::map<std::string, std::string>;

// Throws UsageError naming the file when environment.json is missing, cut off, or something else,
// or run.json's configuration is.
Fields read_fields(const std::string& directory, const RunFile& run);

struct Difference {
  std::string field;
  std::string base, next;  // "absent" where a side has no such field
  bool declared = false;
};

// Names of what may differ. One is a field's whole name, or one or more neighbouring parts of it:
// "nccl" stands for software.nccl.loaded and all beside it, "NCCL_ALGO" for environment.NCCL_ALGO.
class Factors {
 public:
  explicit Factors(std::vector<std::string> names) : names_(std::move(names)) {}
  bool declare(std::string_view field) const;
  // Exactly this name: of an axis, or of what is no field ("numbers", "timing").
  bool name(std::string_view name) const;
  // Throws UsageError when a name stands for nothing: neither of these fields nor of `others`.
  void check(const std::vector<const Fields*>& known, const std::vector<std::string>& others) const;

 private:
  std::vector<std::string> names_;
};

// In the order of the names. Clocks count as different when more than 1 % apart: systems report
// what they read at that moment.
std::vector<Difference> differences(const Fields& base, const Fields& next, const Factors& factors);

// Throws UsageError naming the fields in which the run differs from a launch of this
// environment.json and configuration (run.json's, or empty): that launch cannot continue it. The
// clocks are not asked.
void refuse_another(const std::string& directory, const RunFile& run,
                    const std::string& environment, const std::string& configuration);

}  // namespace harness

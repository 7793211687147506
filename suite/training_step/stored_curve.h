#pragma once
// The losses of a run in a small JSON file, with which later runs are compared instead of a
// reference in double (--save-reference, --reference stored --reference-file).
//
//   const StoredCurve curve = read_curve("curve.json");
//   check_curve("curve.json", curve, configuration_of(config, corpus));
//   curve.tolerance.at("bfloat16");            // of one loss, relative
//
// A curve belongs to a model, its data, its batch and its optimizer. It does not belong to degrees,
// a schedule, a ZeRO stage or a dtype, which change a loss only by rounding.

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "harness/unit/unit.h"
#include "suite/configuration/training_config.h"
#include "suite/files/corpus.h"

namespace suite {

// What a training step's losses are compared with.
enum class Against : unsigned char {
  cpu,     // the same model in double, on rank 0
  stored,  // a loss curve of an earlier run
  none,    // nothing: only replicas and finite, falling losses are judged
};
std::string_view name(Against against);
Against parse_against(const std::string& text);  // throws UsageError with the known names
const std::vector<std::string>& against_names();

// Keys and values that change a loss by more than rounding, the seed included, in a fixed order.
using CurveKeys = std::vector<std::pair<std::string, std::string>>;
CurveKeys curve_keys(const TrainingConfig& config, const Corpus& corpus);

struct StoredCurve {
  CurveKeys configuration;
  std::string dtype;                        // of the run
  Against judged = Against::none;           // what the run was compared with
  std::vector<double> losses;               // of each step, a mean over the tokens that count
  std::vector<int> skipped;                 // steps, from 1, that were skipped
  std::map<std::string, double> tolerance;  // by dtype, relative
};

// Returns the curve of a run of this configuration, with tolerances of rounding for each dtype.
StoredCurve curve_of(const TrainingConfig& config, const Corpus& corpus, Against judged,
                     const std::vector<double>& losses, const std::vector<int>& skipped);

// Throws FileError with the file and the wrong key.
StoredCurve read_curve(const std::string& path);
// Throws as NewFile (files/new_file.h).
void write_curve(const std::string& path, const StoredCurve& curve);
// Throws FileError that names the first key in which the file differs from these.
void check_curve(const std::string& path, const StoredCurve& curve, const CurveKeys& mine);

// Rejects options that do not fit together. steps: selected cases of a training step.
void check_reference(const harness::LossReference& reference, std::ptrdiff_t steps);

}  // namespace suite

#pragma once
// The losses of a run in a small JSON file, with which later runs are compared instead of a
// reference in double (--save-reference, --reference stored --reference-file).
//
//   const StoredCurve curve = read_curve("curve.json");
//   check_curve("curve.json", curve, curve_keys(config, corpus));   // curve_keys.h
//   curve.tolerance.at("bfloat16");                                 // of one loss, relative

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace suite {

// The reference of a training step's losses.
enum class Against : unsigned char {
  cpu,     // the same model in double, on rank 0
  stored,  // a loss curve of an earlier run
  none,    // nothing: only replicas and finite, falling losses are judged
};
std::string_view name(Against against);
Against parse_against(const std::string& text);  // throws UsageError with the known names
const std::vector<std::string>& against_names();

// Keys and their values, in a fixed order.
using CurveKeys = std::vector<std::pair<std::string, std::string>>;

struct StoredCurve {
  CurveKeys configuration;
  std::string dtype;                        // of the run
  Against judged = Against::none;           // what the run was compared with
  std::vector<double> losses;               // of each step, a mean over the tokens that count
  std::vector<int> skipped;                 // steps, from 1, that were skipped
  std::map<std::string, double> tolerance;  // by dtype, relative
};

// Throws FileError with the file and the wrong key.
StoredCurve read_curve(const std::string& path);
// Throws as NewFile (files/new_file.h).
void write_curve(const std::string& path, const StoredCurve& curve);
// Throws FileError that names the first key in which the file differs from these.
void check_curve(const std::string& path, const StoredCurve& curve, const CurveKeys& mine);

}  // namespace suite

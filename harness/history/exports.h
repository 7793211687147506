#pragma once
// A history in the formats of other programs:
//
//   google_benchmark  JSON for tools/compare.py; a run is a repetition of its cases
//   bencher           Bencher Metric Format: the median over the runs, in ns, and their range
//   otava             CSV for Apache Otava (formerly Hunter): a row per run, a column per case;
//                     a gap has the time of the previous run
//   prometheus        text exposition format, of the last run (node_exporter's textfile collector)

#include <string>
#include <string_view>
#include <vector>

#include "harness/history/store.h"

namespace harness {

enum class ExportFormat : unsigned char { google_benchmark, bencher, otava, prometheus };
// Throws UsageError naming the nearest.
ExportFormat parse_export_format(std::string_view text);

// Exports these runs, in this order, and these cases (all if no case is named). Cases that did not
// pass have no time and are left out.
std::string exported(const History& history, ExportFormat format,
                     const std::vector<StoredRun>& runs, const std::vector<std::string>& cases);

}  // namespace harness

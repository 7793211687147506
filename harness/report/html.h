#pragma once
// report.html: one page that reads only figures/ next to it, with the verdict first and the
// fingerprint last.

#include <string>

#include "harness/compare/comparable.h"
#include "harness/record/run_json.h"
#include "harness/report/figures.h"

namespace harness {

// Writes report.html and drain.json from run.json and environment.json of the directory. Draws its
// figures first if `draw`. Returns why figures are missing, in one line, or empty. Throws like
// read_run.
std::string write_report(const std::string& directory, bool draw = true);

// environment: environment.json's text, or empty; fields: the same as a flat list. comparison: HTML
// of the comparison with the previous run, or empty.
std::string report_html(const RunFile& run, const Figures& figures, const std::string& environment,
                        const Fields& fields = {}, const std::string& comparison = "");

// Parts of the page.
std::string machine_card(const RunFile& run, const Fields& fields);
std::string unit_table(const RunFile& run);   // one row per unit
std::string case_tables(const RunFile& run);  // one folded table per unit
std::string oracle_table(const RunFile& run);
// Returns the algorithms whose results of real numbers have the same bits, by their fingerprints.
// Empty if no two algorithms ran the same case.
std::string bits_table(const RunFile& run);
std::string figure_gallery(const Figures& figures, const std::string& directory);

}  // namespace harness

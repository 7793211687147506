#pragma once
// report.html: one page that needs nothing else, with the verdict first and the machine last.

#include <initializer_list>
#include <string>
#include <string_view>

#include "harness/record/run_json.h"
#include "harness/report/figures.h"

namespace harness {

// Writes report.html and drain.json from run.json and environment.json of the directory. Draws its
// figures first if `draw`. Throws like read_run.
void write_report(const std::string& directory, bool draw = true);

// environment: environment.json's text, or empty.
std::string report_html(const RunFile& run, const Figures& figures, const std::string& environment);

// Parts of the page (case_tables.cpp).
std::string overview_table(const RunFile& run);
std::string case_tables(const RunFile& run);
std::string oracle_table(const RunFile& run);
// The algorithms whose results of real numbers have the same bits, by their fingerprints. Empty if
// no two algorithms ran the same case.
std::string bits_table(const RunFile& run);

// "105 us" with the micro sign.
std::string html_seconds(double seconds);
// A case's name, escaped, that may be broken after its slashes.
std::string breakable(const std::string& name);
// A table that scrolls if it is wider than the page. head and rows: <th> and <tr> elements.
std::string table(const std::string& label, std::string_view css_class, std::string_view head,
                  std::string_view rows);
// <th> or <td> elements of numbers.
std::string number_heads(std::initializer_list<std::string_view> titles);
std::string number_cells(std::initializer_list<std::string> texts);

extern const char* const page_style;
extern const char* const page_script;

}  // namespace harness

#pragma once
// report.html: one page that needs nothing else, with the verdict first and the machine last.

#include <string>

#include "harness/record/run_json.h"
#include "harness/report/figures.h"

namespace harness {

// Reads run.json and environment.json of the directory; draws its figures first when asked to.
// Throws as read_run does.
void write_report(const std::string& directory, bool draw = true);

// environment: environment.json's text, or empty.
std::string report_html(const RunFile& run, const Figures& figures, const std::string& environment);

// The parts of the page that stand in case_tables.cpp.
std::string overview_table(const RunFile& run);
std::string case_tables(const RunFile& run);
std::string oracle_table(const RunFile& run);
// In bits_table.cpp; empty where no two algorithms did the same.
std::string bits_table(const RunFile& run);

// "105 us" with the micro sign.
std::string html_seconds(double seconds);
// A case's name, escaped, that may be broken after its slashes.
std::string breakable(const std::string& name);
// An element that scrolls by itself when it is wider than the page.
std::string scrolling(const std::string& label, const std::string& table);

extern const char* const page_style;
extern const char* const page_script;

}  // namespace harness

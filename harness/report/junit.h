#pragma once
// junit.xml: a test suite for every unit, a test case for every record, for the programs that show
// conformance runs (CI servers). A failed case has its reason and the oracles' findings.

#include <string>

#include "harness/record/run_json.h"

namespace harness {

std::string junit_xml(const RunFile& run);
// Writes junit.xml from run.json of this directory. Throws like read_run.
void write_junit(const std::string& directory);

// Escapes text for XML and HTML. Invalid UTF-8 and characters that XML 1.0 lacks become U+FFFD.
std::string escaped(std::string_view text);

}  // namespace harness

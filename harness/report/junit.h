#pragma once
// junit.xml: a test suite for every unit, a test case for every record, for the programs that show
// conformance runs (CI servers). A failed case carries its reason and what each oracle said.

#include <string>

#include "harness/record/run_json.h"

namespace harness {

std::string junit_xml(const RunFile& run);
// From run.json of this directory, which it throws as read_run about.
void write_junit(const std::string& directory);

// For text and attributes of XML and HTML: marks escaped, what XML 1.0 has no character for and
// what is not UTF-8 replaced by U+FFFD.
std::string escaped(std::string_view text);

}  // namespace harness

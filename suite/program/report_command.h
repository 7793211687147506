#pragma once
// The reports that `run`, `report` and `health` make of a run directory.

#include <string>

namespace suite {

// Writes report.html and junit.xml. Throws as harness::read_run.
void write_reports(const std::string& directory);

// Prints the findings. Returns harness::Level as an exit code, as health-check runners expect, or 3
// with an error line if the directory cannot be read.
int print_health(const std::string& directory);

}  // namespace suite

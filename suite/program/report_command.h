#pragma once
// What `run`, `report` and `health` say of a run directory.

#include <string>

namespace suite {

// report.html and junit.xml. Throws as harness::read_run.
void write_reports(const std::string& directory);

// Prints the findings. Returns harness::Level as an exit code, as health-check runners have it: 3
// if the directory cannot be read, with a line that says why.
int print_health(const std::string& directory);

}  // namespace suite

#pragma once
// The file that nccl-tests 2.19.6 writes for -J (schema 3; NVIDIA/nccl-tests, src/util.cu). It has
// the keys and types of nccl-tests (flags and verdicts are the strings "true" and "false"; root is
// as wide as its column). Our keys are `shardmark`, and in a result `algorithm`, `device_time` and
// `wrong_where`. `env` contains only variables that affect the software, without secrets.
// `nccl_version` is null.

#include <string>
#include <string_view>
#include <vector>

#include "suite/nccl_tests/table.h"

namespace suite::nccl_tests {

struct Report {
  Arguments arguments;
  std::string version, start_time, end_time, transport;
  std::vector<std::string> command, environment;  // environment: "NAME=value"
  std::vector<RankLine> ranks;
  std::vector<Row> rows;
  Totals totals;
};
std::string json(const Report& report);

// Creates a new empty file: path, or path with .0, .1, … appended. Returns its name. Throws
// machine::MachineError if it cannot create the file.
std::string claim_file(const std::string& path);
// Replaces a claimed file. A reader sees the old or the whole new text.
void replace_file(const std::string& path, std::string_view text);

}  // namespace suite::nccl_tests

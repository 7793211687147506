#pragma once
// The file that nccl-tests 2.19.6 writes for -J (schema 3; NVIDIA/nccl-tests, src/util.cu): its
// keys with its types (flags and verdicts are the strings "true" and "false"; root is as wide as
// its column), and ours: `shardmark`, and in a result `algorithm` and `wrong_where`. `env` holds
// only what steers the software, without secrets; `nccl_version` is null.

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

// Makes an empty file that was not there: path, or with .0, .1, … behind; returns its name. Throws
// machine::MachineError when it cannot be made.
std::string claim_file(const std::string& path);
// Over a claimed file; whoever reads sees all of the text or what was there before.
void replace_file(const std::string& path, std::string_view text);

}  // namespace suite::nccl_tests

#pragma once
// One record as one JSON object and back; what run_json.cpp and the report share.

#include <cstdint>
#include <string>
#include <string_view>

#include "harness/record/record.h"

namespace harness {

// Where a record stands in its file.
struct Place {
  int family = 0, instance = 0;
  int repetitions = 1;
  std::uint64_t samples_offset = 0;  // bytes into samples.bin
};

// An object of the array `benchmarks`, on one line.
std::string record_json(const Record& record, const Place& place);

// Text in quotes, with what is not UTF-8 replaced.
std::string json_text(std::string_view text);

}  // namespace harness

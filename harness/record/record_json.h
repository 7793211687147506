#pragma once
// One record as one JSON object and back.

#include <cstdint>
#include <string>
#include <string_view>

#include "harness/json/json.h"
#include "harness/record/record.h"

namespace harness {

// The place of a record in its file.
struct Place {
  int family = 0, instance = 0;
  int repetitions = 1;
  std::uint64_t samples_offset = 0;  // bytes into samples.bin
};

// Returns an object of the array `benchmarks`, on one line.
std::string record_json(const Record& record, const Place& place);

// Returns a record without its samples. Throws std::exception with the key that is missing or of
// another type.
Record read_record(const Json& json);

// Returns an object with kind and, if known, rank, peer, sample and summed_ranks. The text is the
// reason of the record or the run. read_failure throws like read_record.
Json failure_json(const machine::Failure& failure);
machine::Failure read_failure(const Json& json);

// Returns the context's keys from "date" to "shardmark_version": the machine and the program, in
// the form of Google Benchmark's `context`.
Json machine_context(std::string_view schema);

}  // namespace harness

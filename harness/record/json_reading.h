#pragma once
// The parts of record_json.h that need the JSON library's types.

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "harness/record/record.h"

namespace harness {

// Text of JSON, on one line unless indented, with invalid UTF-8 replaced.
std::string dumped(const nlohmann::ordered_json& json, int indent = -1);

// A record without its samples. Throws std::exception with the key that is missing or of another
// type.
Record read_record(const nlohmann::ordered_json& json);

// An object with kind and, if known, rank, peer, sample and summed_ranks. The text is the reason of
// the record or the run. read_failure throws like read_record.
nlohmann::ordered_json failure_json(const machine::Failure& failure);
machine::Failure read_failure(const nlohmann::ordered_json& json);

}  // namespace harness

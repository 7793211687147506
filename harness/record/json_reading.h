#pragma once
// The parts of record_json.h that need the JSON library's types.

#include <nlohmann/json_fwd.hpp>

#include "harness/record/record.h"

namespace harness {

// Without its samples. Throws std::exception naming the key that is missing or of another type.
Record read_record(const nlohmann::ordered_json& json);

// An object: kind, and rank, peer, sample and summed_ranks where they are known. The text is the
// reason of the record or the run. read_failure throws as read_record does.
nlohmann::ordered_json failure_json(const machine::Failure& failure);
machine::Failure read_failure(const nlohmann::ordered_json& json);

}  // namespace harness

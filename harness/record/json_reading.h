#pragma once
// The reading half of record_json.h, apart because it needs the JSON library's types.

#include <nlohmann/json_fwd.hpp>

#include "harness/record/record.h"

namespace harness {

// Without its samples. Throws std::exception naming the key that is missing or of another type.
Record read_record(const nlohmann::ordered_json& json);

}  // namespace harness

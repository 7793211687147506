#pragma once
// Which kind of case a record is of: how much its time may differ for no reason, and what of its
// limit it should reach, depends on that.

#include <string_view>

#include "harness/record/record.h"

namespace harness {

enum class CaseKind : unsigned char {
  step,         // of a training
  computation,  // matrix products
  bandwidth,    // moves 64 MiB or more
  message,      // 64 KiB to 64 MiB
  latency,      // below 64 KiB
  other,        // its size is unknown
};
std::string_view name(CaseKind kind);
CaseKind kind_of_case(const Record& record);

}  // namespace harness

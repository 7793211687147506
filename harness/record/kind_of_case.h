#pragma once
// The kind of a case. It determines the smallest relevant change of its time and the fraction of
// its limit that it should reach.

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

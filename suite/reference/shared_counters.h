#pragma once
// Counters that several units set, one row each.

#include "harness/record/counters.h"

namespace suite {

using harness::Better, harness::Nature;

inline constexpr harness::Counter memory_bytes_counter{
    "memory_bytes", "B", Better::neither, Nature::exact,
    "bytes that one rank reads and writes, by the formula"};
inline constexpr harness::Counter memory_GBps_counter{
    "memory_GBps", "GB/s", Better::higher, Nature::speed, "bytes read and written over the time"};
inline constexpr harness::Counter nvme_GBps_counter{
    "nvme_GBps", "GB/s", Better::higher, Nature::measured,
    "bytes read from or written to the file over the time"};

}  // namespace suite

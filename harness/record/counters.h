#pragma once
// The registry of counters: the numbers of a record in addition to its times. Each has one row here
// or in the unit that writes it. That row is the only source of its unit of measure, of whether two
// runs must agree on it, whether it claims a speed, and of the table in results/README.md.
//
//   static constexpr Counter counters[] = {
//       {"link_GBps", "GB/s", Better::higher, Nature::measured, "bandwidth of one link"}};
//   const bool known = add_counters(counters);  // harness::add<Unit>() adds a unit's own counters
//
// A name that ends with "/rank:N" is a pattern: N is any rank.

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace harness {

enum class Better : unsigned char { neither, higher, lower };

// exact: equal in all runs of the same program on the same machine, so compare reports a change.
// measured: differs between runs. speed: measured, and a property of the hardware, so records of
// ranks that share a GPU omit it.
enum class Nature : unsigned char { exact, measured, speed };

struct Counter {
  std::string_view name;
  std::string_view unit;  // "s", "B", "GB/s"; empty: a count or a ratio
  Better better = Better::neither;
  Nature nature = Nature::measured;
  std::string_view meaning;  // one line
  bool operator==(const Counter&) const = default;
};

// Counters that only the harness writes.
std::span<const Counter> harness_counters();

// Adds rows, whose texts must outlive the registry. Equal rows may be added again. Throws
// std::logic_error for a name that has another row, belongs to the harness, or is a key of
// run.json.
bool add_counters(std::span<const Counter> counters);

// Returns the counter's row, or null. "busy_s/rank:3" finds the row of "busy_s/rank:N".
const Counter* find_counter(std::string_view name);
// Returns all rows, by name.
std::vector<Counter> all_counters();

// Returns whether a number with this key in a record of run.json is not a counter.
bool is_record_key(std::string_view key);

// Returns the table of results/README.md: a line for each counter, by name.
std::string counters_table();

}  // namespace harness

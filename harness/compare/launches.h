#pragma once
// The launches of one side of a comparison, read from run directories. The launch is the unit of
// replication. Its iterations share pages, routes and neighbours, so more iterations predict little
// about the next launch (Hunold and Carpen-Amarie, arXiv:1505.07734).

#include <string>
#include <vector>

#include "harness/compare/comparable.h"
#include "harness/record/record.h"

namespace harness {

struct Launch {
  std::string path, date;
  Fields fields;
  std::vector<Record> records;  // without their samples
};

// Each of `given` is a run directory or a folder of them, read in the order of their names. `side`
// is its name in messages. Adds notes for the reader: an incomplete run, a folder without a run.
// Throws UsageError: no run, not readable, the same run twice.
std::vector<Launch> read_launches(const std::vector<std::string>& given, std::string_view side,
                                  std::vector<std::string>& notes);

// Returns the exact values of a record, as text by name: verdict, error, bits, bytes, messages,
// memory by category, losses. No times and rates.
std::map<std::string, std::string> numbers_of(const Record& record);

}  // namespace harness

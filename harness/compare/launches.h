#pragma once
// The launches of one side of a comparison, read from run directories. A launch is what is
// replicated: iterations within one share its pages, its routes and its neighbours, so ten times as
// many of them say little more about the next launch (Hunold and Carpen-Amarie, arXiv:1505.07734).

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

// Each of `given` is a run directory or a folder of them, taken in the order of their names. `side`
// is what messages call it. Adds to `notes` what a reader should know: a run that did not come to
// its end, a folder in which there is no run. Throws UsageError: nothing there, not readable, the
// same run twice.
std::vector<Launch> read_launches(const std::vector<std::string>& given, std::string_view side,
                                  std::vector<std::string>& notes);

// What a record says that is no time and no rate, as text by name, exactly: verdict, error, bits,
// bytes, messages, memory by category, losses.
std::map<std::string, std::string> numbers_of(const Record& record);

}  // namespace harness

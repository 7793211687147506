#pragma once
// A run directory's trace.json: one step of every case that has a trace, in Chrome's trace format,
// which Perfetto (ui.perfetto.dev) opens. A thread is a lane of a rank. The cases follow each other
// in time; a row above the ranks names them.
//
// Each line is one event, and cases are appended: the file is valid after every case. Cases that
// would make it larger than most_bytes are left out.

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "harness/json/json.h"
#include "harness/record/record.h"

namespace harness {

class TraceWriter {
 public:
  static constexpr std::uint64_t most_bytes = 64 << 20;

  // Keeps the first `kept` cases of the file: 0 for a new run. Creates the file with the first
  // trace. Throws machine::MachineError for an error of the system.
  TraceWriter(const std::string& directory, std::size_t kept);
  // number: the case's place in run.json.
  void add(std::size_t number, const Record& record);

 private:
  struct Written {
    std::uint64_t bytes = 0;  // of the file, without its end; 0: no file
    std::int64_t end_ns = 0;  // of the last case
    std::map<std::string, int> lanes;
    std::set<int> named;  // threads
    void keep(const Json& event);
  };
  // Returns the case's events, one per line, without a trailing comma.
  static std::string events(std::size_t number, const Record& record, Written& written);

  std::string path_;
  Written written_;
};

}  // namespace harness

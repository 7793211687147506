#pragma once
// A run directory's trace.json: one step of every case that has a trace, in Chrome's trace format,
// which Perfetto (ui.perfetto.dev) opens. A thread is a lane of a rank; the cases lie one after the
// other in time, as a row of their own above the ranks says.
//
// Events stand one a line, and cases are appended: the file is whole after every case. Cases that
// would make it larger than most_bytes are left out.

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>

#include "harness/record/record.h"

namespace harness {

class TraceWriter {
 public:
  static constexpr std::uint64_t most_bytes = 64 << 20;

  // Of the cases that are in the file, the first `kept` stay: 0 for a new run. There is no file
  // before there is a trace. Throws machine::MachineError when the system refuses.
  TraceWriter(const std::string& directory, std::size_t kept);
  // number: the case's place in run.json.
  void add(std::size_t number, const Record& record);

 private:
  struct Written {
    std::uint64_t bytes = 0;  // of the file, without its end; 0: there is none
    std::int64_t end_ns = 0;  // of the last case
    std::map<std::string, int> lanes;
    std::set<int> named;  // threads
    void keep(const nlohmann::json& event);
  };
  // The case's events, a line each, none with a comma behind it.
  static std::string events(std::size_t number, const Record& record, Written& written);

  std::string path_;
  Written written_;
};

}  // namespace harness

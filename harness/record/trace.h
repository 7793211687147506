#pragma once
// A run directory's trace.json: one step of every case that has a trace, in Chrome's trace format,
// which Perfetto (ui.perfetto.dev) opens. A process is a rank of a case, a thread one of its lanes.
//
// Events stand one a line, and cases are appended: the file is whole after every case. Cases that
// would make it larger than most_bytes are left out.

#include <cstdint>
#include <string>

#include "harness/record.h"

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
  std::string path_;
  std::uint64_t bytes_ = 0;  // of the file, without its end; 0: there is none
};

}  // namespace harness

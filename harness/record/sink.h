#pragma once
// The receiver of a run's records, on rank 0. RunWriter (run_json.h) writes them to a directory.

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "harness/record/record.h"

namespace harness {

class Sink {
 public:
  virtual ~Sink() = default;
  virtual void started(const std::string& /*name*/) {}  // a case
  virtual void add(const Record& record) = 0;           // after every case
  virtual void finish(const RunContext& context) = 0;   // once, however the run ends
  virtual void measured(const RunContext&) {}           // when more rates are known
  // The watchdog ends the run, on its own thread. Later records are dropped.
  virtual void abort(const machine::Failure&, const Record& /*lost*/) {}
};

// The listener of a run that shows it to the user: Console (console.h).
class Progress {
 public:
  virtual ~Progress() = default;
  virtual void start(std::size_t cases) = 0;
  virtual void case_started(const std::string& name) = 0;
  // Receives all times of the case so far, after every block of samples.
  virtual void case_sampled(std::span<const double> /*times*/) {}
  virtual void case_done(const Record& record) = 0;
  // records: all, without their samples.
  virtual void finish(const RunContext& context, const std::vector<Record>& records) = 0;
};

}  // namespace harness

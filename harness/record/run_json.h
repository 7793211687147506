#pragma once
// A run directory's run.json and samples.bin: written case by case, read back whole.
//
//   RunWriter writer(context, "results/runs/today");
//   writer.add(record);                  // after every case: what is finished is on disk
//   context.status = "complete";
//   writer.finish(context);
//   RunFile run = read_run("results/runs/today");
//
// The keys are Google Benchmark's (version 1.7.1) and those of results/README.md. A number that is
// NaN or infinite is left out; a double in the file reads back bit for bit (a record's two times
// pass through nanoseconds).

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "harness/record/record.h"
#include "harness/record/trace.h"
#include "machine/base/disk_fault.h"

namespace harness {

class RunWriter {
 public:
  // Makes the directory and writes a run.json without cases; an older run's files there are
  // removed. continues: goes on behind the finished cases of the run there (read_finished). Throws
  // UsageError when the path cannot be a directory (a file is there), machine::MachineError when
  // the system refuses (permission, full disk) or another writer, of whatever process, has the
  // directory; all name the path and the reason.
  // `disk`, if any, must outlive this.
  RunWriter(RunContext context, const std::string& directory, bool continues = false,
            machine::DiskFault* disk = nullptr);

  // Appends the samples to samples.bin and the trace to trace.json, then replaces run.json. When
  // that fails the directory holds what it held before.
  void add(const Record& record);
  // Replaces run.json with this context: status, reason, rates.
  void finish(RunContext context);
  // mark_aborted; what would be written later is dropped. May be called by another thread.
  void abort(const machine::Failure& failure, const Record& failing);

  const std::string& directory() const { return directory_; }

 private:
  // A case's JSON around the number of repetitions, which grows with later records of its name.
  struct Entry {
    std::string before, after;
    const int* repetitions;
  };
  struct File {
    int descriptor = -1;
    ~File();
  };
  void take_up();
  // text: record_json's, of a case that comes next.
  void keep(std::string_view text, const std::string& name);
  int& repetitions(const std::string& name, int repetition);
  // Places of unit and name, given when they come first.
  std::pair<int, int> place(const std::string& unit, const std::string& name);
  void write() const;
  void append(std::string_view samples);

  std::string directory_;
  machine::DiskFault* disk_;
  RunContext context_;
  std::string fixed_context_;  // what of the context never changes
  std::vector<Entry> entries_;
  std::map<std::string, int> repetitions_;               // by case name
  std::map<std::string, std::pair<int, int>> families_;  // unit -> its index, names so far
  std::map<std::string, int> instance_;                  // case name -> index in its family
  std::uint64_t samples_bytes_ = 0;
  File samples_file_;  // locked: it tells others that somebody writes here
  std::optional<TraceWriter> trace_;
  mutable std::mutex writing_;  // run.json
  bool aborted_ = false;
};

struct RunFile {
  RunContext context;  // out_dir: the directory it was read from
  std::string date, host_name;
  // What else the context says of machine and build, as JSON text: "mhz_per_cpu" -> "2596".
  std::map<std::string, std::string> machine;
  std::vector<Record> records;
};

// A run directory, or its run.json. Samples are read when samples.bin is beside it. Throws
// UsageError naming file and place when it is missing, cut off, or not a run.
RunFile read_run(const std::string& given);

// The same without samples, and without the case that was running when a rank was lost: what need
// not be run again.
// Throws UsageError also where what the directory says of its command is too little to go on.
RunFile read_finished(const std::string& directory);

// Marks the run in `directory` aborted by this failure and adds the case that ran (in the place of
// its own record, if that is the last and failed). What is there stays: of an aborted run the
// failure too, unless this failure has a lost rank and that failure had none. For a process without
// a RunWriter of the directory. Throws as RunWriter does.
void mark_aborted(const std::string& directory, const machine::Failure& failure,
                  const Record& failing);

// Writes beside and renames, so that a reader sees the old text or the new one.
void write_file(const std::string& path, std::string_view text, machine::DiskFault* disk = nullptr);

}  // namespace harness
